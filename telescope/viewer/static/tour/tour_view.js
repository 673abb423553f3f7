// To come.

import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";

export function TourView() {
  return html`<h2>${t("view.tour")}</h2>`;
}
