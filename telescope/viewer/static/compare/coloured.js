// An answer as running text in the colours of one quantity. A click on a token opens it.

import { colour, ink, isDark, level } from "../core/colour.js";
import { has } from "../core/number.js";
import { go } from "../core/state.js";
import { t } from "../core/text.js";
import { groups } from "../core/token_text.js";
import { endMark, running } from "../samples/running_text.js";
import { figureOf, scoreOf } from "../token/figure.js";
import { quantityShown } from "../token/view.js";
import { html } from "../vendor/preact.js";

const MOST_TOKENS = 1200;

// Where an answer is from (`children`), its verdict, score, first V and length.
export function AnswerHead({ row, children }) {
  const { score, right, v0, length } = row;
  return html`
    <div class="stack-head">
      ${children}
      <span class=${right ? "verdict right" : "verdict wrong"}>${right ? "✓" : "✗"}</span>
      <span>${t("token.score")} <b class="mono score">${scoreOf(score)}</b></span>
      ${has(v0) ? html`<span>${t("compare.v0")} <b class="mono v0">${figureOf("v0", v0, { digits: 2 })}</b></span>` : null}
      <span class="quiet">${t("reader.length", { n: length })}</span>
    </div>
  `;
}

// `columns`: the sample's own, or those of a what-if. `mark`: a token to point out.
export function Coloured({ sample, columns = sample.columns, run = null, mark = null }) {
  const quantity = quantityShown(sample);
  const column = columns[quantity] ?? [];
  isDark.value;
  const shown = groups(sample).filter((group) => group.from < MOST_TOKENS);
  function open(event) {
    if (sample.kind === "eval") return; // its tokens are not in the list of any step
    const token = event.target.closest("[data-token]")?.dataset.token;
    if (token === undefined) return;
    const changes = { view: "samples", step: sample.step, sample: sample.position };
    go({ ...changes, token: Number(token), ...(run === null ? {} : { run }) });
  }
  return html`
    <div class="coloured" dir="auto" onClick=${open}>
      ${shown.map((group) => {
        const { from, to, text } = group;
        const end = endMark(sample, group);
        const strength = sample.mask[from] ? level(quantity, column[from]) : null;
        const style =
          strength === null ? {} : { backgroundColor: colour(strength), color: ink(strength) };
        const isMarked = mark !== null && mark >= from && mark < to;
        return html`
          <span
            key=${from} data-token=${from} style=${style}
            title=${end === null ? null : t("reader.eos")}
            class=${`${sample.mask[from] ? "tok" : "tok tool"}${end === null ? "" : " eos"}${isMarked ? " differs" : ""}`}
          >${running(end ?? (text || "∅"), { breaks: end === null })}</span>
        `;
      })}
      ${sample.token_ids.length > MOST_TOKENS ? html`<span class="quiet">…</span>` : null}
    </div>
  `;
}
