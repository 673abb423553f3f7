// Text as it is read: line breaks break, and what is invisible stands as a sign.

import { runs } from "../core/token_text.js";
import { html } from "../vendor/preact.js";

// Pieces of a text as children. A line break is a sign and a break, so that it can be coloured.
export function running(text, { breaks = false } = {}) {
  return runs(text).map(({ text: piece, hidden }) => {
    if (hidden) return html`<span class="unseen">${piece}</span>`;
    return breaks ? withBreaks(piece) : piece;
  });
}

function withBreaks(text) {
  const [first, ...others] = text.split("\n");
  return [first, ...others.flatMap((line) => [html`<span class="break">${"\n"}</span>`, line])];
}

const SPECIAL = /^<[|｜]?[^<>\s]{1,40}[|｜]?>$|^\[[A-Z_]+\]$|^$/;

// The name of the token that ends an answer; null where `group` is no such token.
export function endMark(sample, group) {
  const isLast = group.from === sample.length - 1;
  if (!isLast || sample.truncated || !SPECIAL.test(group.text)) return null;
  return group.text === "" ? "EOS" : group.text;
}
