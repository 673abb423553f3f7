// Numbers as the tour writes them: telescope.viewer.tour_texts does the same in its sentences.

import { has, minus, signed, tenth } from "../core/number.js";
import { isKid } from "../core/text.js";

// At most three decimals: 0.7, −0.63.
function short(x) {
  const text = x.toFixed(3).replace(/\.?0+$/, "");
  if (text !== "0" && text !== "-0") return minus(text);
  return Math.abs(x) < 1e-12 ? "0" : minus(x.toExponential(0));
}

// For a child a score of 1 is 100 points.
const points = (x) => tenth(100 * x);

// For a child a factor of 1.005 is half a percent more.
function change(x) {
  const percent = 100 * (x - 1);
  return `${signed(tenth(percent), percent)} %`;
}

// How far apart two written numbers are, in the same unit.
export function apart(one, other) {
  const number = (text) => Number(text.replaceAll("−", "-").replace(/[^\d.e-]/g, ""));
  const text = short(Math.abs(number(one) - number(other)));
  return one.endsWith("%") ? `${text} %` : text;
}

// unit: points, percent, factor or plain
export function shown(x, { unit = "points", sign = false } = {}) {
  if (!has(x)) return "–";
  if (unit === "percent") return `${points(x)} %`;
  let text = short(x);
  if (isKid.value) text = unit === "points" ? points(x) : tenth(x);
  if (unit === "factor") return isKid.value ? change(x) : `×${text}`;
  return sign ? signed(text, x) : text;
}
