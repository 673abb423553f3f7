// To come.

import { html } from "../vendor/preact.js";
import { step } from "../core/data.js";
import { Loaded } from "../core/parts.js";

export function SamplesView() {
  return html`<${Loaded} from=${step}>${(found) => html`<pre>${JSON.stringify(found).slice(0, 2000)}</pre>`}</${Loaded}>`;
}
