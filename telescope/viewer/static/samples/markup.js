// Markdown that answers often hold, made readable without changing a character of it.

// [kind, pattern]; the first pattern that takes a place has it.
const KINDS = [
  ["code", /```[^\n]*\n[\s\S]*?(?:```|$)/g],
  ["code", /`[^`\n]+`/g],
  ["head", /^#{1,6} [^\n]*$/gm],
  ["strong", /\*\*[^*\n]+\*\*/g],
];

// The kind of every character of a text: "" for most.
export function kindsOf(text) {
  const kinds = new Array(text.length).fill("");
  for (const [kind, pattern] of KINDS) {
    for (const { index, 0: found } of text.matchAll(pattern)) {
      for (let at = index; at < index + found.length; at++) kinds[at] ||= kind;
    }
  }
  return kinds;
}

// A piece of the text, from `start`, cut where the kind changes: [{kind, text}].
export function cutByKind(piece, kinds, start) {
  const out = [];
  for (let at = 0; at < piece.length; at++) {
    const kind = kinds[start + at] ?? "";
    const last = out.at(-1);
    if (last && last.kind === kind) last.text += piece[at];
    else out.push({ kind, text: piece[at] });
  }
  return out;
}
