// Numbers as the tour writes them: telescope.viewer.tour_texts does the same in its sentences.

import { has } from "../core/number.js";
import { isKid } from "../core/text.js";

const minus = (text) => text.replace("-", "−");
const trimmed = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);

// At most three decimals: 0.7, −0.63.
export function short(x) {
  const text = trimmed(x.toFixed(3));
  if (text !== "0" && text !== "-0") return minus(text);
  return Math.abs(x) < 1e-12 ? "0" : minus(x.toExponential(0));
}

// For a child a score of 1 is 100 points.
export function points(x) {
  const text = trimmed((100 * x).toFixed(1));
  return text === "-0" ? "0" : minus(text);
}

function tenth(x) {
  const text = trimmed(x.toFixed(1));
  return text === "-0" ? "0" : minus(text);
}

const signed = (text, x) => (x > 0 && text !== "0" ? `+${text}` : text);

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
  if (unit === "percent") return `${trimmed((100 * x).toFixed(1))} %`;
  let text = short(x);
  if (isKid.value) text = unit === "points" ? points(x) : tenth(x);
  if (unit === "factor") return isKid.value ? change(x) : `×${text}`;
  return sign ? signed(text, x) : text;
}
