// Numbers as text.

export const has = (x) => typeof x === "number" && Number.isFinite(x);
export const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

export function num(x, { sign = false, digits = 3 } = {}) {
  if (!has(x)) return "–";
  const size = Math.abs(x);
  let text = size.toFixed(size >= 100 ? 1 : digits);
  if (size > 0 && size < 0.5 * 10 ** -digits) text = size.toExponential(0);
  if (size >= 1e4 && digits === 3) text = size.toExponential(2).replace("+", ""); // in a picture
  if (x < 0) return `−${text}`;
  return sign && x > 0 ? `+${text}` : text;
}

export const minus = (text) => text.replace("-", "−");
export const signed = (text, x) => (x > 0 && text !== "0" ? `+${text}` : text);

// One decimal at most, for a child: 0.7, −12, 0.
export function tenth(x) {
  const text = x.toFixed(1).replace(/\.0$/, "");
  return text === "-0" ? "0" : minus(text);
}

export const sub = (i) => String(i).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);

export const percent = (x) => (has(x) ? `${(100 * x).toFixed(1)} %` : "–");

// Of the list the number that is nearest to `wanted`; null if it is empty.
export function nearest(numbers, wanted) {
  const closer = (best, x) => (Math.abs(x - wanted) < Math.abs(best - wanted) ? x : best);
  return numbers.length ? numbers.reduce(closer) : null;
}

// {mean, std}: variance over n − 1.
export function moments(numbers) {
  const n = numbers.length;
  const mean = numbers.reduce((sum, x) => sum + x, 0) / Math.max(n, 1);
  const squares = numbers.reduce((sum, x) => sum + (x - mean) ** 2, 0);
  return { mean, std: Math.sqrt(squares / Math.max(n - 1, 1)) };
}
