// One term: its formula, with the numbers put in, and the result.

import { num } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { about } from "./figure.js";
import { Formula } from "./math.js";

const exact = (x) => (typeof x === "string" ? x : num(x, { digits: 5 }));

// What a term's result is, where that has a unit.
const QUANTITY_OF = {
  reward: "token_level_rewards",
  delta: "deltas",
  advantage_sum: "advantages",
  advantage: "advantages",
  return: "returns",
};

export function Equation({ trace, verdict = null }) {
  const { name, formula, substituted, result, recorded, math } = trace;
  if (isKid.value) {
    return html`<div class="math">${about(QUANTITY_OF[name] ?? name, result)}${verdict}</div>`;
  }
  const was = recorded === null || recorded === undefined ? null : exact(recorded);
  return html`
    <div class="math">
      <div class="eq"><${Formula} tree=${math ?? null} plain=${formula} /></div>
      <div class="eq">= ${substituted}</div>
      <div class="eq">
        = <b>${exact(result)}</b>
        ${was === null ? null : html`<span class="quiet">  ${t("token.recorded")} ${was}</span>`}
        ${verdict}
      </div>
    </div>
  `;
}
