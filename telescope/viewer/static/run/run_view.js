// To come.

import { run } from "../core/data.js";
import { Loaded } from "../core/parts.js";
import { html } from "../vendor/preact.js";

export function RunView() {
  return html`<${Loaded} from=${run}>${(found) => html`<pre>${JSON.stringify(found).slice(0, 2000)}</pre>`}</${Loaded}>`;
}
