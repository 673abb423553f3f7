// Which samples are listed, which token is shown, and how strongly it is coloured.

import { has } from "./tools.js";
import { state, store } from "./state.js";
import { flipped, viewOf } from "./whatif.js";

const KEEP = {
  all: () => true,
  right: (row) => row.right,
  wrong: (row) => !row.right,
  clipped: (row) => row.clipped,
  flipped: (row) => row.flipped,
};
const SORT_BY = {
  order: (row) => row.position,
  score: (row) => -(row.score ?? -Infinity),
  length: (row) => -row.length,
  surprise: (row) => -row.max_abs_a,
};

// Filtered and sorted; samples of one prompt stand together, at the place of their first.
export function chosenRows() {
  const ofPrompt = (row) => !state.prompt || row.prompt_key === state.prompt;
  const rows = store.index.filter((row) => KEEP[state.filter](row) && ofPrompt(row));
  const by = SORT_BY[state.sort];
  rows.sort((a, b) => by(a) - by(b) || a.position - b.position);
  const byPrompt = new Map();
  for (const row of rows) {
    if (!byPrompt.has(row.prompt_key)) byPrompt.set(row.prompt_key, []);
    byPrompt.get(row.prompt_key).push(row);
  }
  return [...byPrompt.values()].flat();
}

export const loadedRows = () => chosenRows().filter((row) => store.loaded.has(row.position));

// The sample and the token under the pointer, else those that are pinned.
export function shownToken() {
  const position = store.hover?.sample ?? state.sample ?? chosenRows()[0]?.position;
  const sample = store.loaded.get(position);
  const token = store.hover ? store.hover.token : state.token;
  const exists = sample && has(token) && token >= 0 && token < sample.token_bytes.length;
  return { sample, token: exists ? token : null };
}

// The sample to show first: one with a clipped token, else the one with the largest |A|.
export function striking() {
  const rows = loadedRows();
  const larger = (best, row) => (best && best.max_abs_a >= row.max_abs_a ? best : row);
  return rows.find((row) => row.clipped) ?? rows.reduce(larger, null);
}

// The token to show first: a clipped one, else the one with the largest |A| before the last, where
// A is δ.
export function surprising(sample) {
  if (!sample) return null;
  const last = sample.mask.lastIndexOf(1);
  const size = (t) => (t === last ? 0 : Math.abs(sample.columns.advantages?.[t] ?? 0));
  const larger = (best, _, t) => (size(t) > size(best) ? t : best);
  return sample.clipped?.[0] ?? sample.token_bytes.reduce(larger, 0);
}

export function badges(sample, t) {
  const tool = sample.mask[t] ? "" : "🔧";
  const clipped = sample.clipped?.includes(t) ? "✂" : "";
  return tool + clipped + (flipped(viewOf(sample).columns, t) ? "⇅" : "");
}

// ---- colour ----

const strength = (x) => (state.color === "ratio" ? x - 1 : x); // a ratio of 1 is neutral

// What a full colour stands for, over the loaded samples.
export function scale() {
  let top = 0;
  for (const sample of store.loaded.values()) {
    const column = viewOf(sample).columns[state.color] ?? [];
    column.forEach((x, t) => {
      if (sample.mask[t] && has(x)) top = Math.max(top, Math.abs(strength(x)));
    });
  }
  return top || 1;
}
export const level = (x, top) => (has(x) ? strength(x) / top : null);
