// One sentence about the token that is shown: what the critic expected, and what the actor learns.

import { has } from "../core/number.js";
import { lang, t } from "../core/text.js";
import { groupOf, visible } from "../core/token_text.js";
import { tokenSeen } from "../token/chosen.js";
import { figureOf } from "../token/figure.js";
import { isClipped, symbolOf } from "../token/view.js";
import { html } from "../vendor/preact.js";
import { viewOf } from "../whatif/whatif.js";

// What the critic expected before the token and after it; null without a critic.
function expectedAt(sample, { values }, i) {
  if (!has(values?.[i])) return null;
  const next = sample.mask.findIndex((m, k) => m && k > i);
  const said = (v) => figureOf("values", v);
  const before = said(values[i]);
  if (next >= 0) return t("reader.line.expected", { before, after: said(values[next]) });
  return t("reader.line.last", { before, after: said(sample.bootstrap ?? 0) });
}

// Which way the actor's advantage pushes the token.
function learnedFrom(columns, i) {
  const quantity = has(columns.whitened?.[i]) ? "whitened" : "advantages";
  const x = columns[quantity]?.[i];
  if (!has(x)) return null;
  const way = x === 0 ? "same" : x < 0 ? "less" : "more";
  const number = figureOf(quantity, x, { sign: true });
  return t(`reader.line.${way}`, { symbol: symbolOf(quantity), x: number });
}

// That the loss pushes it no further; not said of a what-if, whose updates nobody made.
const stoppedAt = (sample, { columns, changed }, i) =>
  !changed && isClipped(sample, columns, i) ? t("reader.line.clipped") : null;

export function TokenLine({ sample }) {
  const i = tokenSeen.value;
  if (i === null) return html`<p id="token-line" class="token-line quiet">${t("token.hint")}</p>`;
  const view = viewOf(sample);
  const { columns, changed } = view;
  const word = visible(groupOf(sample, i).text, 16) || "∅";
  const said = sample.mask[i]
    ? [expectedAt(sample, columns, i), learnedFrom(columns, i), stoppedAt(sample, view, i)]
    : [t("reader.line.tool")];
  if (!said.some(Boolean)) return null;
  const mark = changed ? t("whatif.line") : null;
  const sentences = [mark, t("reader.line.token", { i, word }), ...said].filter(Boolean);
  return html`
    <p id="token-line" class="token-line">${sentences.join(lang.value === "zh" ? "" : " ")}</p>
  `;
}
