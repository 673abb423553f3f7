// To come.

import { step } from "../core/data.js";
import { Loaded } from "../core/parts.js";
import { html } from "../vendor/preact.js";

export function SamplesView() {
  return html`<${Loaded} from=${step}>${(found) => html`<pre>${JSON.stringify(found).slice(0, 2000)}</pre>`}</${Loaded}>`;
}
