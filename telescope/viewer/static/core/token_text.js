// Token texts: nothing invisible, and characters that are split over several tokens.

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
    if (to === from + 1 && sample.token_sizes?.[from]) text = `${text.replace(/\ufffd+$/, "")}…`;
    out.push({ from, to, text });
    from = to;
  }
  sample.groups = out;
  return out;
}
export const groupOf = (sample, t) =>
  groups(sample).find((group) => t >= group.from && t < group.to);

const hexByte = (byte) => byte.toString(16).padStart(2, "0").toUpperCase();
export const hex = (bytes) => bytes.slice(0, 4).map(hexByte).join(" ") || "∅";
