// How a token and a quantity are shown: signs, symbols, colours.

import { QUANTITIES, state } from "../core/state.js";
import { t } from "../core/text.js";

// Whether whitening turned the sign of a token's advantage.
export function isFlipped(columns, i) {
  const a = columns.advantages?.[i];
  const w = columns.whitened?.[i];
  return a * w < 0;
}

// The tokens that the last update clipped, as recorded.
const recordedClips = new WeakMap();

function clipsOf(sample) {
  if (!recordedClips.has(sample)) recordedClips.set(sample, new Set(sample.clipped ?? []));
  return recordedClips.get(sample);
}

// `columns` has clips of its own under another loss.
export const isClipped = (sample, columns, i) =>
  columns.clipped ? columns.clipped[i] > 0 : clipsOf(sample).has(i);

// The signs on a token: written by a tool, clipped, sign flipped.
export function badges(sample, columns, i) {
  const tool = sample.mask[i] ? "" : "🔧";
  const clipped = isClipped(sample, columns, i) ? "✂" : "";
  return tool + clipped + (isFlipped(columns, i) ? "⇅" : "");
}

// How a quantity is called: its symbol, or a word for a child.
export const symbolOf = (quantity) => t(`token.word.${quantity}`);

// The quantities that this sample has.
export const quantitiesOf = (sample) => QUANTITIES.filter((name) => sample.columns[name]?.length);

// The quantity that colours this sample: the chosen one, or the first that it has.
export function quantityShown(sample) {
  const wanted = state.colour.value;
  return sample.columns[wanted]?.length ? wanted : (quantitiesOf(sample)[0] ?? wanted);
}
