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

// Numbers for a child: no powers of ten.
export function plain(text, almost) {
  return text.replace(/([−-]?)(\d*\.?\d+)e[−-](\d+)/g, (_, sign, digits, power) => {
    const fixed = (Number(digits) / 10 ** Number(power)).toFixed(6).replace(/0+$/, "");
    return fixed === "0." ? almost : sign + fixed;
  });
}

// A number as its quantity is written: a ratio with ×.
export function shown(quantity, x) {
  if (quantity !== "ratio") return num(x, { sign: true });
  return has(x) ? `×${num(x)}` : "–";
}

export const sub = (i) => String(i).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);

export const percent = (x, digits = 0) => (has(x) ? `${(100 * x).toFixed(digits)} %` : "–");
