// The answers of a step: the table, the reader, and the chosen token under the lens.

import { AskBox } from "../ask/ask.js";
import { run, sample, sampleShown, step } from "../core/data.js";
import { has } from "../core/number.js";
import { Loaded, Trouble } from "../core/parts.js";
import { t } from "../core/text.js";
import { Fence } from "../token/fence.js";
import { TermsPanel } from "../token/terms.js";
import { html } from "../vendor/preact.js";
import { Controls } from "../whatif/controls.js";
import { asksCritic } from "../whatif/group.js";
import { GroupPicture } from "../whatif/group_picture.js";
import { Reader } from "./reader.js";
import { SampleTable } from "./table.js";

export function SamplesView() {
  const isEmpty = run.value && !run.value.ledger?.length;
  if (isEmpty) return html`<p class="quiet">${t("samples.nothing")}</p>`;
  return html`
    <${Loaded} from=${step}>
      ${(found) => html`
        <div class="answers">
          <${SampleTable} />
          <${Sample} found=${found} />
        </div>
      `}
    </${Loaded}>
  `;
}

function Sample({ found }) {
  const { value, error } = sample;
  const isOther = value && value.position !== sampleShown.value;
  if (error && (isOther || !value))
    return html`<${Trouble} error=${error} retry=${sample.reload} />`;
  if (!value) return null;
  const right = has(value.score) && value.score >= (run.value?.correct_score ?? 1);
  const hasValues = found.settings?.critic !== false;
  return html`
    <${Reader} sample=${value} right=${right} />
    <${Controls} sample=${value} />
    ${asksCritic.value ? null : html`<${GroupPicture} sample=${value} />`}
    ${hasValues ? html`<${Fence} sample=${value} />` : null}
    <${TermsPanel} sample=${value} />
    <${AskBox} sample=${value} />
  `;
}
