// Numbers on the fence and beside it: three digits, one for a child.

import { has, num } from "../core/number.js";
import { isKid, t } from "../core/text.js";

export function figure(x, { sign = false, digits = 3 } = {}) {
  if (!isKid.value) return num(x, { sign, digits });
  if (!has(x)) return "–";
  const text = Math.abs(x).toFixed(1);
  if (Number(text) === 0) return "0.0";
  if (x < 0) return `−${text}`;
  return sign ? `+${text}` : text;
}

// A number as its quantity is written: a ratio with ×.
export function figureOf(quantity, x) {
  if (quantity !== "ratio") return figure(x, { sign: true });
  return has(x) ? `×${figure(x)}` : "–";
}

// A result for a child.
export const about = (x) =>
  Math.abs(x) < 0.05 ? t("token.almost") : t("token.about", { x: num(x, { digits: 1 }) });
