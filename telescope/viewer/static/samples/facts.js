// What to know about a sample before reading it: verdict, score, what the critic expected, and
// which tokens got the blame and the praise.

import { has } from "../core/number.js";
import { isKid, lang, t } from "../core/text.js";
import { groupOf, visible } from "../core/token_text.js";
import { pin } from "../token/chosen.js";
import { figureOf, scoreOf } from "../token/figure.js";
import { symbolOf } from "../token/view.js";
import { html } from "../vendor/preact.js";
import { viewOf } from "../whatif/whatif.js";
import { OnlyThroughV } from "./only_through_v.js";
import { Parts } from "./parts_of_score.js";

// The written token whose number is smallest (sign −1) or largest (sign 1), if it has that sign.
function extreme(sample, column, sign) {
  let best = null;
  column?.forEach((x, i) => {
    if (!sample.mask[i] || !has(x) || x * sign <= 0) return;
    if (best === null || x * sign > column[best] * sign) best = i;
  });
  return best;
}

// Whether the written tokens have different numbers: estimators without a critic often give one.
function differs(sample, column) {
  const numbers = column?.filter((x, i) => sample.mask[i] && has(x)) ?? [];
  return numbers.some((x) => Math.abs(x - numbers[0]) > 1e-6);
}

// [key of its words, column, token]
function remarkable(sample) {
  const { columns } = viewOf(sample);
  const credit = columns.whitened?.some((x) => has(x) && x !== 0) ? "whitened" : "advantages";
  const found = [];
  if (differs(sample, columns[credit])) {
    found.push(["blamed", credit, extreme(sample, columns[credit], -1)]);
    found.push(["praised", credit, extreme(sample, columns[credit], 1)]);
  }
  if (columns.values) found.push(["drop", "deltas", extreme(sample, columns.deltas, -1)]);
  return found.filter(([, , i]) => i !== null);
}

// Shows the token, and lets the arrow keys go on from it.
function open(i) {
  pin(i);
  document.getElementById("answer")?.focus({ preventScroll: true });
}

function TokenButton({ sample, kind, column, i }) {
  const { columns, changed } = viewOf(sample);
  const word = visible(groupOf(sample, i).text, 16) || "∅";
  const number = figureOf(column, columns[column][i], { sign: true });
  return html`
    <button
      type="button" class="fact" data-fact=${kind} data-at=${i}
      title=${t(`reader.${kind}.why`)} onClick=${() => open(i)}
    >
      ${t(`reader.${kind}`)} <b>${word}</b>${" "}
      <span class="mono">${isKid.value ? number : `${symbolOf(column)} ${number}`}</span>
      ${changed ? html`<small>${t("whatif.mark")}</small>` : null}
    </button>
  `;
}

function Remarkable({ sample }) {
  return remarkable(sample).map(
    ([kind, column, i]) =>
      html`<${TokenButton} key=${kind} sample=${sample} kind=${kind} column=${column} i=${i} />`,
  );
}

function Verdict({ sample, right }) {
  return html`
    <span class=${`verdict ${right ? "right" : "wrong"}`}>
      ${right ? "✓" : "✗"} ${t(right ? "samples.right" : "samples.wrong")}
    </span>
    <span id="score">${t("token.score")} <b class="mono">${scoreOf(sample.score)}</b></span>
  `;
}

// Other columns of the prompt's row in the data, such as the right answer.
function Data({ sample }) {
  return Object.entries(sample.data ?? {}).map(
    ([name, value]) => html`
      <span key=${name} class="data" data-column=${name} title=${t("reader.data.why", { name })}>
        ${name} <b class="mono">${visible(value, 60)}</b>
      </span>
    `,
  );
}

// What is wrong in a step of another trainer, and its rules where a number disagrees.
function Remarks({ sample }) {
  if (isKid.value) return null;
  return (sample.remarks ?? []).map(
    (remark) => html`<p class="remark" key=${remark.en}>⚠ ${remark[lang.value]}</p>`,
  );
}

export function Facts({ sample, right }) {
  const v0 = sample.columns.values?.find((_, i) => sample.mask[i]);
  return html`
    <div id="facts" class="facts">
      ${has(sample.score) ? html`<${Verdict} sample=${sample} right=${right} />` : null}
      <${Parts} sample=${sample} />
      <${Data} sample=${sample} />
      <span>${t("reader.length", { n: sample.length })}</span>
      ${sample.truncated ? html`<span class="cut">${t("samples.truncated")}</span>` : null}
      ${
        has(v0)
          ? html`<span id="v0" title=${t("reader.v0.why")}>
              ${t("reader.v0")} <b class="mono">${figureOf("v0", v0)}</b>
            </span>`
          : null
      }
      <${Remarkable} sample=${sample} />
    </div>
    <${OnlyThroughV} sample=${sample} />
    <${Remarks} sample=${sample} />
  `;
}
