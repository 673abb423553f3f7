// To come.

import { html } from "../vendor/preact.js";
import { t } from "../core/text.js";

export function TourView() {
  return html`<h2>${t("view.tour")}</h2>`;
}
