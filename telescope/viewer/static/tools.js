// Elements, numbers, text and colours. No state.

export const $ = (id) => document.getElementById(id);

function make(namespace, tag, attributes, children) {
  const node = namespace
    ? document.createElementNS(namespace, tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  }
  const present = children.filter((child) => child !== null && child !== undefined);
  node.append(...present); // strings become text nodes
  return node;
}
export const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
export const svg = (tag, attributes, ...children) =>
  make("http://www.w3.org/2000/svg", tag, attributes, children);

// ---- numbers ----

export const has = (x) => typeof x === "number" && Number.isFinite(x);
export const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

export function num(x, { sign = false, digits = 3 } = {}) {
  if (!has(x)) return "–";
  const size = Math.abs(x);
  let text = size.toFixed(size >= 100 ? 1 : digits);
  if (size > 0 && size < 0.5 * 10 ** -digits) text = size.toExponential(0);
  if (x < 0) return "−" + text;
  return sign && x > 0 ? "+" + text : text;
}

// Numbers for a child: no powers of ten.
export function plain(text, almost) {
  return text.replace(/([−-]?)(\d*\.?\d+)e[−-](\d+)/g, (_, sign, digits, power) => {
    const fixed = (Number(digits) / 10 ** Number(power)).toFixed(6).replace(/0+$/, "");
    return fixed === "0." ? almost : sign + fixed;
  });
}

export function shown(quantity, x) {
  if (quantity !== "ratio") return num(x, { sign: true });
  return has(x) ? "×" + num(x) : "–";
}
export const sub = (i) => String(i).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉"[digit]);

// ---- text ----

const UNSEEN = new RegExp(
  "[\\u0080-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f" +
    "\\ufeff\\ufff9-\\ufffb]|\\p{Cs}|[\\u{e0000}-\\u{e0fff}]",
  "u",
);

function visibleCharacter(c) {
  const code = c.codePointAt(0);
  if (c === " ") return "␣";
  if (c === "\n") return "↵";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return UNSEEN.test(c) ? `⟨${code.toString(16).toUpperCase()}⟩` : c;
}

// Nothing invisible: spaces and breaks as signs, controls as their pictures, direction marks and
// the like as code points.
export function visible(text, limit = 40) {
  const cut = [...text.slice(0, limit * 2 + 2)];
  const out = cut.slice(0, limit).map(visibleCharacter).join("");
  return out + (cut.length > limit ? "…" : "");
}

// Whether the bytes end inside a character.
function splits(bytes) {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) === 0x80) continue;
    if (byte >= 0xf0) return back < 4;
    if (byte >= 0xe0) return back < 3;
    return byte >= 0xc0 && back < 2;
  }
  return false;
}

// [{from, to, text}]: tokens from..to-1 whose bytes make whole characters together. Most groups
// are one token.
export function groups(sample) {
  if (sample.groups) return sample.groups;
  const bytes = sample.token_bytes;
  const out = [];
  for (let from = 0; from < bytes.length; ) {
    let to = from + 1;
    let joined = bytes[from];
    const goesOn = () => splits(joined) && (bytes[to][0] & 0xc0) === 0x80;
    while (to < bytes.length && to - from < 8 && goesOn()) joined = joined.concat(bytes[to++]);
    let text = new TextDecoder().decode(Uint8Array.from(joined));
    if (to === from + 1 && sample.token_sizes?.[from]) text = text.replace(/\ufffd+$/, "") + "…";
    out.push({ from, to, text });
    from = to;
  }
  return (sample.groups = out);
}
export const groupOf = (sample, t) =>
  groups(sample).find((group) => t >= group.from && t < group.to);

const hexByte = (byte) => byte.toString(16).padStart(2, "0").toUpperCase();
export const hex = (bytes) => bytes.slice(0, 4).map(hexByte).join(" ") || "∅";

// ---- colours: purple – neutral – orange ----

const RAMPS = {
  light: [
    [84, 39, 136],
    [153, 142, 195],
    [250, 250, 250],
    [253, 184, 99],
    [214, 96, 4],
  ],
  dark: [
    [176, 150, 240],
    [98, 82, 150],
    [43, 48, 58],
    [150, 92, 32],
    [250, 160, 64],
  ],
};
export const darkScheme = matchMedia("(prefers-color-scheme: dark)");

// x in −1..1
export function colour(x) {
  if (!has(x)) return "var(--none)";
  const ramp = darkScheme.matches ? RAMPS.dark : RAMPS.light;
  const at = (clamp(x, -1, 1) + 1) * 2;
  const i = Math.min(3, Math.floor(at));
  const mixed = ramp[i].map((c, k) => Math.round(c + (ramp[i + 1][k] - c) * (at - i)));
  return `rgb(${mixed.join(" ")})`;
}

// The colour of text on colour(x).
export function ink(x) {
  if (!has(x)) return "var(--ink)";
  if (darkScheme.matches) return x < -0.7 || x > 0.7 ? "#14171c" : "#f2f4f8";
  return x < -0.6 || x > 0.9 ? "#fff" : "#1f2430";
}
export const tone = (x) => (x < 0 ? "var(--minus)" : "var(--plus)");
