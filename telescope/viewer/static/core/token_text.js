// Token texts: nothing invisible, and characters that are split over several tokens.

// Characters that draw nothing, or that change what stands beside them.
const UNSEEN = new RegExp(
  "[\\u0080-\\u009f\\u00a0\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f" +
    "\\u2000-\\u200f\\u2028-\\u202f\\u205f-\\u206f\\u2800\\u3000\\u3164\\ufe00-\\ufe0e\\ufeff" +
    "\\uffa0\\ufff9-\\ufffb]|\\p{Cs}|[\\u{e0000}-\\u{e0fff}]",
  "u",
);
const CJK_SPACE = "\u3000"; // an ordinary space of Chinese text

const codePoint = (c) => `⟨${c.codePointAt(0).toString(16).toUpperCase().padStart(2, "0")}⟩`;

function visibleCharacter(c) {
  const code = c.codePointAt(0);
  if (c === " ") return "␣";
  if (c === "\n") return "↵";
  if (code < 0x20) return String.fromCodePoint(0x2400 + code);
  if (code === 0x7f) return "␡";
  return UNSEEN.test(c) ? codePoint(c) : c;
}

// Nothing invisible: spaces and breaks as signs, controls as their pictures, direction marks and
// the like as code points.
export function visible(text, limit = 40) {
  const cut = [...text.slice(0, limit * 2 + 2)];
  const out = cut.slice(0, limit).map(visibleCharacter).join("");
  return out + (cut.length > limit ? "…" : "");
}

const ORDINARY = new Set([" ", "\n", "\t", CJK_SPACE]);

// Running text as [{text, hidden}]: spaces and line breaks stay, what is invisible stands as a sign.
export function runs(text) {
  const out = [];
  const add = (piece, hidden) => {
    const last = out.at(-1);
    if (last && last.hidden === hidden) last.text += piece;
    else out.push({ text: piece, hidden });
  };
  for (const c of text) {
    const sign = ORDINARY.has(c) ? c : visibleCharacter(c);
    add(sign, sign !== c);
  }
  return out;
}

// One line of running text, for tables and titles.
export function oneLine(text, limit = 160) {
  const flat = text
    .slice(0, limit * 2)
    .replace(/[ \t\r\n]+/g, " ")
    .trim();
  const cut = [...flat];
  const shown = runs(cut.slice(0, limit).join(""));
  return shown.map((each) => each.text).join("") + (cut.length > limit ? "…" : "");
}

// The beginning and the end of a long text in one line: the end of an answer is what was judged.
export function bothEnds(text, limit) {
  const flat = text.replace(/[ \t\r\n]+/g, " ").trim();
  const letters = [...flat];
  if (letters.length <= limit) return oneLine(flat, limit);
  const half = Math.floor(limit / 2);
  const part = (from, to) => oneLine(letters.slice(from, to).join(""), limit);
  return `${part(0, half)} … ${part(-half)}`;
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
