// On audited posts: the mean outcome of continuations from there, and its interval as a whisker.

import { has } from "../core/number.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { figureOf } from "./figure.js";

const BESIDE = 11; // right of the post, so that V stays visible
const CAP = 3.5;

export function Audited(scene) {
  const { sample, from, to } = scene;
  const seen = (sample.audit?.posts ?? []).filter(([i]) => i >= from && i <= to);
  return seen.filter((post) => post.every(has)).map((post) => whisker(scene, post));
}

function whisker({ sample, post, y }, [i, mean, low, high]) {
  const x = post(i) + BESIDE;
  const cap = (at) => html`<line x1=${x - CAP} x2=${x + CAP} y1=${at} y2=${at} />`;
  return html`
    <g class="audited" data-token=${i}>
      <title>${audited(sample.audit, mean, low, high)}</title>
      <line x1=${x} x2=${x} y1=${y(low)} y2=${y(high)} />
      ${cap(y(low))}${cap(y(high))}
      <circle cx=${x} cy=${y(mean)} r="4" />
    </g>
  `;
}

function audited({ continuations, own_policy }, mean, low, high) {
  const said = t("token.audit.post", {
    n: continuations,
    mean: figureOf("values", mean),
    low: figureOf("values", low),
    high: figureOf("values", high),
  });
  return own_policy ? said : `${said} ${t("token.audit.other")}`;
}

// What the sign means, below the picture's rule.
export const auditRule = ({ audit }) =>
  audit
    ? html`<p class="rule audit-rule">${t("token.audit", { n: audit.continuations })}</p>`
    : null;
