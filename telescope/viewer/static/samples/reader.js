// The reader: the question, the answer in colours, and the minimap of the whole answer.

import { Panel } from "../core/parts.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { Answer } from "./answer.js";
import { Facts } from "./facts.js";
import { ColourChoice, Legend } from "./legend.js";
import { Minimap } from "./minimap.js";
import { Prompt } from "./prompt.js";
import { TokenLine } from "./token_line.js";

export function Reader({ sample, right }) {
  const place = t("reader.place", {
    step: sample.step,
    position: sample.position,
    count: sample.count ?? "?",
  });
  return html`
    <${Panel} id="reader" title=${t("reader.title")} bar=${html`<span class="quiet">${place}</span>`}>
      <${Facts} sample=${sample} right=${right} />
      <${Prompt} key=${sample.position} sample=${sample} />
      <div class="bar under">
        <${ColourChoice} sample=${sample} />
        <${Legend} sample=${sample} />
      </div>
      <${Minimap} sample=${sample} />
      <${TokenLine} sample=${sample} />
      <div class="turn assistant">
        <span class="role">${t("reader.role.answer")}</span>
        <${Answer} sample=${sample} />
      </div>
    </${Panel}>
  `;
}
