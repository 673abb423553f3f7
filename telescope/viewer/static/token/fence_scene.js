// What the fence picture shows, and where: posts, gaps and the axis of the values.

import { has } from "../core/number.js";

const NARROW = 560; // below it, captions are one word
const WIDE_EDGES = { left: 142, right: 46 }; // room for the captions and for the end
const NARROW_EDGES = { left: 68, right: 26 };
const NARROWEST = 74; // a gap
const NARROWEST_OF_NARROW = 60;
const WIDEST = 120;
const MOST = 20; // tokens
const BREAK = 34; // height of a broken axis
const PLOT_HEIGHT = 118;

// Heights of the rows. While a what-if is on, the recorded numbers stand below the new ones.
function rowsOf(changed) {
  const plot = 82;
  const more = changed ? 12 : 0;
  const d = 284;
  const fan = 299 + more;
  const A = fan + 75;
  const W = A + 31 + more;
  return {
    state: 15,
    box: 24,
    boxHeight: 36,
    plot,
    plotEnd: plot + PLOT_HEIGHT,
    r: 244,
    d,
    fan,
    A,
    W,
    height: W + 17 + more,
  };
}

// The tokens around the chosen one that fit into the width. `before`: the first one shown so far.
function windowOf(count, token, width, before) {
  const isNarrow = width < NARROW;
  const { left, right } = isNarrow ? NARROW_EDGES : WIDE_EDGES;
  const inner = width - left - right;
  const fits = Math.max(3, Math.floor(inner / (isNarrow ? NARROWEST_OF_NARROW : NARROWEST)));
  const size = Math.min(count, fits, MOST);
  const isOutside = token !== null && (token < before || token >= before + size);
  const follows = token !== null && isNarrow; // a few tokens: the chosen one in their middle
  const start = isOutside || follows ? token - Math.floor(size / 3) : before;
  const from = Math.max(0, Math.min(start, count - size));
  const gap = Math.min(WIDEST, inner / Math.max(size, 1));
  return { from, to: from + size, gap, left };
}

// `view`: {columns, weights, changed}.
export function sceneOf({ sample, view, token, width, before }) {
  const { columns, weights, changed } = view;
  const { from, to, gap, left } = windowOf(sample.token_bytes.length, token, width, before);
  const acts = sample.mask.flatMap((m, i) => (m ? [i] : []));
  const post = (i) => left + (i - from) * gap;
  const scene = {
    sample,
    token,
    width,
    left,
    isNarrow: width < NARROW,
    from,
    to,
    gap,
    columns,
    changed,
    recorded: sample.columns,
    weights,
    acts,
    post,
    row: rowsOf(changed),
    mid: (i) => post(i) + gap / 2,
    after: (i) => acts.find((next) => next > i), // the next token that the policy wrote
    tokens: Array.from({ length: to - from }, (_, k) => from + k),
    r: columns.token_level_rewards ?? [],
    v: columns.values ?? [],
    d: columns.deltas ?? [],
    a: columns.advantages ?? [],
    R: columns.returns ?? [],
    endValue: sample.bootstrap ?? 0,
    isChosen: (i) => i === token,
  };
  return { ...scene, ...axisOf(scene) };
}

// The values' axis. An end far from all other values would squash them: the axis is broken there.
function axisOf({ sample, tokens, to, v, d, R, endValue, row }) {
  const written = tokens.filter((i) => sample.mask[i]);
  const audited = (sample.audit?.posts ?? []).filter(([i]) => tokens.includes(i));
  const seen = [
    ...written.flatMap((i) => [v[i], R[i], v[i] + d[i]]),
    ...audited.flatMap(([, ...ends]) => ends),
  ].filter(has);
  let low = seen.length ? Math.min(...seen) : 0;
  let high = seen.length ? Math.max(...seen) : 1;
  const room = 2 * (high - low);
  const ends = to === sample.length;
  const isFar = ends && (endValue < low - room || endValue > high + room);
  if (ends && !isFar) {
    low = Math.min(low, endValue);
    high = Math.max(high, endValue);
  }
  if (high - low < 1e-6) {
    low -= 0.5;
    high += 0.5;
  }
  const floor = row.plotEnd - (isFar ? BREAK : 0);
  const y = (x) => floor - ((x - low) / (high - low)) * (floor - row.plot);
  return { isFar, y };
}
