// Numbers on the fence and beside it: three digits. For a child at most one, and points: a score of
// 1 is 100 points, as in the tour.

import { step } from "../core/data.js";
import { has, num, signed, tenth } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { tickText } from "../core/ticks.js";

const POINTS = 100;
const IN_POINTS = new Set([
  "score",
  "v0",
  "values",
  "token_level_rewards",
  "deltas",
  "returns",
  "outcome",
  "baseline",
  "scale",
]);
const CREDIT = new Set(["advantages", "max_abs_a"]);

// Whether a quantity is counted in points. Without a critic an advantage may be divided by σ.
const isInPoints = (quantity) =>
  IN_POINTS.has(quantity) || (CREDIT.has(quantity) && step.value?.settings?.critic !== false);

const inUnit = (quantity, x) => (isKid.value && isInPoints(quantity) ? POINTS * x : x);

function oneDecimal(x, sign = false) {
  if (!has(x)) return "–";
  return sign ? signed(tenth(x), x) : tenth(x);
}

// A number without a unit: a weight, a ratio.
export function figure(x, { sign = false, digits = 3 } = {}) {
  return isKid.value ? oneDecimal(x, sign) : num(x, { sign, digits });
}

// A number of a quantity; a ratio with ×.
export function figureOf(quantity, x, options = {}) {
  if (quantity === "ratio") return has(x) ? `×${figure(x)}` : "–";
  return figure(has(x) ? inUnit(quantity, x) : x, options);
}

export const scoreOf = (x) => figureOf("score", x, { digits: 2 });

// A number of an axis: as many decimals as its ticks need, one at most for a child.
export const tickOf = (quantity, tick, ticks) =>
  isKid.value ? figureOf(quantity, tick) : tickText(tick, ticks);

// A result for a child.
export function about(quantity, x) {
  const shown = inUnit(quantity, x);
  if (shown === 0) return "0";
  if (Math.abs(shown) < 0.05) return t("token.almost");
  const key = isInPoints(quantity) ? "token.points" : "token.about";
  return t(key, { x: oneDecimal(shown) });
}
