// To come.

import { runs } from "../core/data.js";
import { Loaded } from "../core/parts.js";
import { html } from "../vendor/preact.js";

export function RunsView() {
  return html`<${Loaded} from=${runs}>${(found) => html`<pre>${JSON.stringify(found).slice(0, 2000)}</pre>`}</${Loaded}>`;
}
