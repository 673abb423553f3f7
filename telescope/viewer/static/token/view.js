// The numbers of a sample as they are shown: recorded, or under a what-if.

import { QUANTITIES } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { viewOf as whatIfView } from "../whatif/whatif.js";

// {columns, weights, changed}: `changed` where these are not the recorded numbers.
export const viewOf = (sample) => whatIfView(sample);

// Whether whitening turned the sign of a token's advantage.
export function isFlipped(columns, i) {
  const a = columns.advantages?.[i];
  const w = columns.whitened?.[i];
  return a * w < 0;
}

export function isClipped(sample, i) {
  const now = viewOf(sample).columns.clipped; // under another loss
  return now ? now[i] > 0 : (sample.clipped?.includes(i) ?? false);
}

// The signs on a token: written by a tool, clipped, sign flipped.
export function badges(sample, columns, i) {
  const tool = sample.mask[i] ? "" : "🔧";
  const clipped = isClipped(sample, i) ? "✂" : "";
  return tool + clipped + (isFlipped(columns, i) ? "⇅" : "");
}

const SYMBOLS = { ...QUANTITIES, returns: "R" };

// How a quantity is called: its symbol, or a word for a child.
export const symbolOf = (quantity) =>
  isKid.value ? t(`token.word.${quantity}`) : SYMBOLS[quantity];

// The quantities that this sample has.
export const quantitiesOf = (sample) =>
  Object.keys(QUANTITIES).filter((name) => sample.columns[name]?.length);
