// One prompt at several steps, stacked, in one scale of colours: how the answer changed.

import { Panel, Trouble } from "../core/parts.js";
import { go } from "../core/state.js";
import { t } from "../core/text.js";
import { ColourChoice, Legend } from "../samples/legend.js";
import { Prompt } from "../samples/prompt.js";
import { html } from "../vendor/preact.js";
import { AnswerHead, Coloured } from "./coloured.js";
import { promptPath, samplePath, useAnswer } from "./loaded.js";
import { PromptChoice, promptShown, useRecurring } from "./prompt_choice.js";

const MOST_ROWS = 12;

// All rows if they are few, else one of each step, and of these some at equal distances.
function chosenRows(rows, most = MOST_ROWS) {
  if (rows.length <= most) return rows;
  const firsts = rows.filter((row, k) => k === 0 || row.step !== rows[k - 1].step);
  if (firsts.length <= most) return firsts;
  const at = Array.from({ length: most }, (_, k) =>
    Math.round((k * (firsts.length - 1)) / (most - 1)),
  );
  return [...new Set(at)].map((k) => firsts[k]);
}

export function PromptThroughTraining({ found }) {
  const recurring = useRecurring();
  const key = recurring === null ? null : promptShown(found.index, recurring);
  const answer = useAnswer(key === null ? null : promptPath(key));
  const rows = answer.value ? chosenRows(answer.value.rows) : [];
  const first = useAnswer(rows.length ? samplePath(rows[0]) : null).value;
  const recorded = answer.value?.rows.length ?? 0;
  return html`
    <${Panel} id="prompt-steps" title=${t("compare.prompt.title")}>
      <div class="bar"><${PromptChoice} index=${found.index} anywhere=${recurring ?? []} /></div>
      ${answer.error ? html`<${Trouble} error=${answer.error} />` : null}
      ${first ? html`<${Prompt} key=${key} sample=${first} />` : null}
      ${
        first
          ? html`<div class="bar under"><${ColourChoice} sample=${first} /><${Legend} sample=${first} /></div>`
          : null
      }
      <p class="quiet" id="prompt-count">
        ${answer.value ? t("compare.prompt.count", { shown: rows.length, n: recorded }) : t("page.loading")}
      </p>
      <ol class="stack">
        ${rows.map((row) => html`<${Row} key=${`${row.kind}/${row.step}/${row.position}`} row=${row} />`)}
      </ol>
    </${Panel}>
  `;
}

function Row({ row }) {
  const { value, error } = useAnswer(samplePath(row));
  const { step, position } = row;
  return html`
    <li data-step=${step} data-kind=${row.kind} data-position=${position}>
      <${AnswerHead} row=${row}>
        ${
          row.kind === "eval"
            ? html`<b title=${t("compare.greedy.why")}>${t("compare.greedy", { step })}</b>`
            : html`<button
                type="button" class="small"
                onClick=${() => go({ view: "samples", step, sample: position, token: null })}
              >
                ${t("compare.at", { step, position })}
              </button>`
        }
      </${AnswerHead}>
      ${error ? html`<${Trouble} error=${error} />` : null}
      ${value ? html`<${Coloured} sample=${value} />` : null}
    </li>
  `;
}
