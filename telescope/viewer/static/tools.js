// Elements, numbers, text and colours: no state.

function make(namespace, tag, attributes, children) {
  const node = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {}))
    if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined)); // strings become text nodes
  return node;
}
export const el = (tag, attributes, ...children) => make(null, tag, attributes, children);
export const svg = (tag, attributes, ...children) => make("http://www.w3.org/2000/svg", tag, attributes, children);

export const has = (x) => typeof x === "number" && Number.isFinite(x);

export function num(x, { sign = false, digits = 3 } = {}) {
  if (!has(x)) return "–";
  const size = Math.abs(x);
  const text = size === 0 ? (0).toFixed(digits) : size < 0.5 * 10 ** -digits ? size.toExponential(0) : size.toFixed(
    size >= 100 ? 1 : digits);
  return (x < 0 ? "−" : sign && x > 0 ? "+" : "") + text;
}
export const plain = (text, almost) => text.replace(/([−-]?)(\d*\.?\d+)e[−-](\d+)/g, (_, sign, digits, power) => { // for a child
  const fixed = (Number(digits) / 10 ** Number(power)).toFixed(6).replace(/^0|0+$/g, "");
  return fixed === "." ? almost : sign + fixed;
});
export const shown = (quantity, x) => (quantity === "ratio" ? (has(x) ? "×" + num(x) : "–") : num(x, { sign: true }));
export const sub = (i) => String(i).replace(/\d/g, (digit) => "₀₁₂₃₄₅₆₇₈₉" [digit]);

// Nothing invisible: spaces and breaks as signs, controls as their pictures, direction marks and the like as code points.
export function visible(text, limit = 40) {
  const cut = [...text.slice(0, limit * 2 + 2)];
  const out = cut.slice(0, limit).map((c) => {
    const code = c.codePointAt(0);
    if (c === " ") return "␣";
    if (c === "\n") return "↵";
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    return /[\u0080-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|\p{Cs}|[\u{e0000}-\u{e0fff}]/u
      .test(c) ?
      `⟨${code.toString(16).toUpperCase()}⟩` : c;
  });
  return out.join("") + (cut.length > limit ? "…" : "");
}

// [{from, to, text}]: tokens from..to-1 whose bytes make whole characters together; most groups are one token.
export function groups(sample) {
  if (sample.groups) return sample.groups;
  const bytes = sample.token_bytes,
    out = [];
  for (let from = 0; from < bytes.length;) {
    let to = from + 1,
      joined = bytes[from];
    while (to < bytes.length && to - from < 8 && splits(joined) && (bytes[to][0] & 0xc0) === 0x80) joined = joined.concat(bytes[to++]);
    const more = to === from + 1 && sample.token_sizes?.[from];
    out.push({ from, to, text: new TextDecoder().decode(Uint8Array.from(joined)).replace(more ? /\ufffd+$/ : "", "") + (more ? "…" :
        "") });
    from = to;
  }
  return (sample.groups = out);
}

function splits(bytes) { // does it end inside a character?
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back];
    if ((byte & 0xc0) !== 0x80) return (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1) > back;
  }
  return false;
}
export const groupOf = (sample, t) => groups(sample).find((group) => t >= group.from && t < group.to);
export const hex = (bytes) => bytes.slice(0, 4).map((b) => b.toString(16).padStart(2, "0").toUpperCase()).join(" ") || "∅";

const STOPS = [
  [-1, [84, 39, 136]],
  [-0.5, [153, 142, 195]],
  [0, [250, 250, 250]],
  [0.5, [253, 184, 99]],
  [1, [214, 96, 4]]
];

export function colour(x) { // x in −1..1: purple – white – orange
  if (!has(x)) return "rgb(238 238 238)";
  const v = Math.max(-1, Math.min(1, x)),
    i = Math.min(3, STOPS.findIndex(([at], k) => k === 4 || v < STOPS[k + 1][0]));
  const [a, ca] = STOPS[i], [b, cb] = STOPS[i + 1], mix = (v - a) / (b - a);
  return `rgb(${ca.map((c, k) => Math.round(c + (cb[k] - c) * mix)).join(" ")})`;
}
export const ink = (x) => (has(x) && (x < -0.6 || x > 0.9) ? "#fff" : "#1f2430");
export const tone = (x) => (x < 0 ? "var(--minus)" : "var(--plus)");
