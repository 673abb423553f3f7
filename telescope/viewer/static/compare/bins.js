// Counting: histograms, grids and bins of equal counts over the written tokens of a step.

import { has } from "../core/number.js";

// Indices of the written tokens that have all these numbers.
function writtenTokens(mask, ...columns) {
  const out = [];
  for (let i = 0; i < mask.length; i++) {
    if (mask[i] && columns.every((column) => has(column[i]))) out.push(i);
  }
  return out;
}

function extent(numbers, at) {
  let low = Infinity;
  let high = -Infinity;
  for (const i of at) {
    if (numbers[i] < low) low = numbers[i];
    if (numbers[i] > high) high = numbers[i];
  }
  if (low === high) return [low - 0.5, high + 0.5];
  return [low, high];
}

export const binOf = (x, [low, high], count) =>
  Math.min(count - 1, Math.max(0, Math.floor(((x - low) / (high - low)) * count)));

// {range, counts, at}: `at` holds the tokens.
export function histogram(numbers, mask, count) {
  const at = writtenTokens(mask, numbers);
  const range = extent(numbers, at);
  const counts = Array(count).fill(0);
  for (const i of at) counts[binOf(numbers[i], range, count)]++;
  return { range, counts, at, numbers };
}

// A grid of counts of pairs: counts[column][row].
export function grid(xs, ys, mask, count) {
  const at = writtenTokens(mask, xs, ys);
  const xRange = extent(xs, at);
  const yRange = extent(ys, at);
  const counts = Array.from({ length: count }, () => Array(count).fill(0));
  for (const i of at) counts[binOf(xs[i], xRange, count)][binOf(ys[i], yRange, count)]++;
  return { xRange, yRange, counts, at };
}

// Tokens by V, in bins of about equal counts: [{x, y, error, count, answers}] with the means of V
// and of what came, and the standard error of the latter.
export function calibrationOf(values, returns, { mask, offsets }, count = 12) {
  const answerOf = answersOf(offsets);
  const at = writtenTokens(mask, values, returns).sort((a, b) => values[a] - values[b]);
  const bins = [];
  let start = 0;
  for (let k = 1; k <= count; k++) {
    let end = Math.max(start, Math.round((k * at.length) / count));
    while (end > start && end < at.length && values[at[end]] === values[at[end - 1]]) end++;
    const own = at.slice(start, end); // equal V stay together
    if (own.length) bins.push({ ...meansOf(own, values, returns, answerOf), tokens: own });
    start = end;
  }
  const gap = meanOf(at, (i) => values[i] - returns[i], answerOf);
  return { bins, at, gap };
}

// The sample of every token of the flat columns.
function answersOf(offsets) {
  const out = new Int32Array(offsets.at(-1));
  for (let row = 0; row + 1 < offsets.length; row++) out.fill(row, offsets[row], offsets[row + 1]);
  return out;
}

function meansOf(own, values, returns, answerOf) {
  const x = own.reduce((sum, i) => sum + values[i], 0) / own.length;
  const { mean: y, error, answers } = meanOf(own, (i) => returns[i], answerOf);
  return { x, y, error, answers, count: own.length };
}

// Fewer answers than this say nothing about how much answers differ.
export const LEAST_ANSWERS = 10;

// {mean, error, answers} of a number of the tokens `at`. Tokens of one answer share its ending: they
// are no independent observations. The standard error therefore adds up what each of the C answers
// (c) is off the mean: √(C/(C − 1) · Σ_c (Σ_{i∈c} (x_i − mean))²) / n. It is null with few answers.
function meanOf(at, of, answerOf) {
  const mean = at.reduce((sum, i) => sum + of(i), 0) / Math.max(at.length, 1);
  const off = new Map();
  for (const i of at) off.set(answerOf[i], (off.get(answerOf[i]) ?? 0) + of(i) - mean);
  const answers = off.size;
  if (answers < LEAST_ANSWERS) return { mean, answers, error: null };
  const squares = [...off.values()].reduce((sum, x) => sum + x * x, 0);
  return { mean, answers, error: Math.sqrt((answers / (answers - 1)) * squares) / at.length };
}

function variance(at, of) {
  const mean = at.reduce((sum, i) => sum + of(i), 0) / at.length;
  return at.reduce((sum, i) => sum + (of(i) - mean) ** 2, 0) / at.length;
}

// How much of the returns' variance V explains; null where all returns are equal.
export function explainedVariance(values, returns, at) {
  const spread = at.length ? variance(at, (i) => returns[i]) : 0;
  if (spread < 1e-12) return null;
  return 1 - variance(at, (i) => returns[i] - values[i]) / spread;
}

// Which sample a token of the flat columns belongs to, and its index there.
export function placeOf(offsets, at) {
  let low = 0;
  let high = offsets.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (offsets[middle] <= at) low = middle;
    else high = middle - 1;
  }
  return { position: low, token: at - offsets[low] };
}
