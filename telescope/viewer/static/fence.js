// The fence picture: V on the posts, everything that belongs to a token in its gap.

import { $, colour, groups, has, hex, ink, num, shown, sub, svg, tone, visible } from "./tools.js";
import { QUANTITIES, state, store, texts } from "./state.js";
import { flipped, labelOf, settings, usesLam, viewOf } from "./whatif.js";
import { badges, level, scale, shownToken } from "./choice.js";

const LEFT = 142; // room for the captions
const RIGHT = 46;
const NARROWEST = 74; // a gap
const WIDEST = 112;
const BREAK = 34; // height of a broken axis
const ROW = {
  state: 15,
  box: 24,
  boxHeight: 36,
  plot: 82,
  plotHeight: 118,
  r: 244,
  d: 284,
  fan: 299,
  A: 374,
  W: 405,
  height: 422,
};
const PLOT_END = ROW.plot + ROW.plotHeight;

// ---- drawing ----

function pen(root) {
  const add = (tag, attributes, ...children) => {
    const node = svg(tag, attributes, ...children);
    root.append(node);
    return node;
  };
  const text = (x, y, content, { fill, size, bold, kind = "", ...rest } = {}) => {
    const node = add("text", { x, y, class: `mid ${kind}`, ...rest }, content);
    if (fill) node.style.fill = fill;
    if (size) node.style.fontSize = `${size}px`;
    if (bold) node.style.fontWeight = bold === true ? 700 : bold;
    return node;
  };
  return { add, text };
}

// ---- what is drawn where ----

// The tokens around the chosen one that fit into the width.
function windowOf(count, token, width) {
  const fits = Math.max(3, Math.floor((width - LEFT - RIGHT) / NARROWEST));
  const size = Math.min(count, fits);
  const { windowStart } = store;
  if (token !== null && (token < windowStart || token >= windowStart + size)) {
    store.windowStart = token - Math.floor(size / 3);
  }
  store.windowStart = Math.max(0, Math.min(store.windowStart, count - size));
  const gap = Math.min(WIDEST, (width - LEFT - RIGHT) / Math.max(size, 1));
  return { from: store.windowStart, to: store.windowStart + size, gap };
}

function sceneOf(sample, token, width) {
  const { columns, weights } = viewOf(sample);
  const { from, to, gap } = windowOf(sample.token_bytes.length, token, width);
  const acts = sample.mask.flatMap((m, t) => (m ? [t] : []));
  const post = (t) => LEFT + (t - from) * gap;
  const scene = {
    sample,
    token,
    width,
    from,
    to,
    gap,
    columns,
    weights: weights ?? [],
    acts,
    post,
    mid: (t) => post(t) + gap / 2,
    after: (t) => acts.find((n) => n > t), // the next token that the policy wrote
    r: columns.token_level_rewards ?? [],
    v: columns.values ?? [],
    d: columns.deltas ?? [],
    a: columns.advantages ?? [],
    R: columns.returns ?? [],
    endValue: sample.bootstrap ?? 0,
    shows: (t) => t >= from && t < to,
    isChosen: (t) => t === token,
  };
  return { ...scene, ...axisOf(scene) };
}

// The values' axis. An end far from all other values would squash them: the axis is broken there.
function axisOf({ sample, from, to, v, d, R, endValue }) {
  const seen = [];
  for (let t = from; t < to; t++) {
    if (sample.mask[t]) seen.push(...[v[t], R[t], v[t] + d[t]].filter(has));
  }
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
  const floor = PLOT_END - (isFar ? BREAK : 0);
  const y = (x) => floor - ((x - low) / (high - low)) * (floor - ROW.plot);
  return { isFar, y };
}

// ---- the parts, back to front ----

function drawBands({ add }, { width, token, post, gap }) {
  const band = (y, height, kind) =>
    add("rect", { x: 4, y, width: width - 8, height, rx: 8, class: kind });
  band(ROW.plot - 20, ROW.plotHeight + 40, "band-states");
  band(PLOT_END + 24, ROW.height - PLOT_END - 25, "band-tokens");
  if (token !== null) {
    const height = ROW.height - ROW.box + 1;
    add("rect", { x: post(token), y: ROW.box - 3, width: gap, height, class: "chosen-gap" });
  }
}

function drawCaptions({ text }, { weights }) {
  const T = texts();
  const caption = (y, name, small, fill) => {
    text(10, y, name, { kind: "ui start", bold: 650, fill });
    text(10, y + 13, small, { kind: "ui start quiet", size: 10.5 });
  };
  caption(ROW.state, T.state, "", "var(--state)");
  caption(ROW.box + 16, T.tokenRow, T.tokenSub);
  caption(ROW.plot + 36, T.V, T.VSub, "var(--state)");
  text(10, ROW.plot + 72, T.R, { kind: "ui start quiet", size: 10.5 });
  text(10, ROW.plot + 87, "↕ δ", { kind: "ui start quiet", size: 10.5 });
  caption(ROW.r - 4, T.r, T.rSub);
  caption(ROW.d - 4, T.d, T.dSub);
  if (weights.length) caption(ROW.fan + 40, T.fan, T.fanSub);
  caption(ROW.A - 4, T.A, weights.length ? T.ASub : "");
  caption(ROW.W - 2, T.W, T.WSub);
}

function drawPosts({ add, text }, { sample, from, to, post }) {
  for (let t = from; t <= to; t++) {
    const isEnd = t === sample.length;
    const isReal = isEnd || t === to || sample.mask[t];
    const x = post(t);
    const height = PLOT_END + 10 - ROW.box;
    const wood = isReal ? "post" : "post faint";
    add("rect", { x: x - 2.5, y: ROW.box - 4, width: 5, height, rx: 2.5, class: wood });
    add("line", { x1: x, x2: x, y1: PLOT_END + 24, y2: ROW.height - 2, class: "post-foot" });
    text(x, ROW.state, isEnd ? texts().end : `s${sub(t)}`, { fill: "var(--state)" });
  }
}

// δ as the distance from V before to what the token made of it: r + γ·V after, which is V + δ.
function drawArrows({ add, text }, scene) {
  const { sample, from, to, v, r, d, y, post, mid, after } = scene;
  for (let t = from; t < to; t++) {
    if (!sample.mask[t] || !has(v[t]) || !has(d[t])) continue;
    const x = mid(t);
    const start = y(v[t]);
    const tip = y(v[t] + d[t]);
    const strong = scene.isChosen(t);
    const level = { x1: post(t) + 7, x2: x + 9, y1: start, y2: start };
    add("line", { ...level, class: strong ? "level strong" : "level" });
    if (after(t) === t + 1 && has(r[t])) {
      const discounted = y(v[t] + d[t] - r[t]); // γ·V after
      add("line", { x1: x + 3, x2: post(t + 1) - 7, y1: tip, y2: discounted, class: "lead" });
    }
    if (Math.abs(tip - start) < 1) continue;
    const up = tip < start ? 1 : -1;
    const fill = tone(d[t]);
    const width = strong ? 3.5 : 2.2;
    const shaft = { x1: x, x2: x, y1: start, y2: tip + up * 3 };
    add("line", { ...shaft, stroke: fill, "stroke-width": width });
    const base = tip + up * 6;
    add("path", { d: `M${x - 5} ${base} L${x} ${tip} L${x + 5} ${base} Z`, fill });
    if (strong) text(x + 8, (start + tip) / 2 + 4, "δ", { kind: "halo start", bold: true, fill });
  }
}

function drawBrokenAxis({ add }, x, y) {
  const zigzag = (dy) => `M${x - 8} ${y - dy} l5 -5 l6 7 l5 -5`;
  add("path", { d: `${zigzag(43)} ${zigzag(38)}`, class: "break" });
}

// V on the posts, and beside it the critic's target R.
function drawValues(tools, scene) {
  const { add, text } = tools;
  const { sample, token, from, to, acts, v, R, y, post, after, endValue, isFar } = scene;
  const lastAct = acts.at(-1) ?? -1;
  const afterChosen = token === null ? null : after(token) ?? sample.length;
  for (let t = from; t <= to; t++) {
    const isEnd = t > lastAct && t === sample.length;
    const written = sample.mask[t] ? v[t] : null;
    const value = isEnd ? endValue : written;
    if (!has(value)) continue;
    const x = post(t);
    const at = isEnd && isFar ? PLOT_END : y(value);
    if (isEnd && isFar) drawBrokenAxis(tools, x, at);
    const hasTarget = has(R[t]) && !isEnd;
    if (hasTarget) {
      add("path", { d: `M${x} ${y(R[t]) - 5} l5 5 l-5 5 l-5 -5 Z`, class: "target" });
    }
    if (has(R[t]) && scene.isChosen(t)) {
      const label = `R${sub(t)}=${num(R[t])}`;
      text(x - 9, y(R[t]) + 4, label, { kind: "halo end quiet", size: 11 });
    }
    const isNear = token !== null && (t === token || t === afterChosen);
    const dot = isEnd ? "dot end-dot" : "dot";
    add("circle", { cx: x, cy: at, r: isNear ? 7.5 : 6, class: dot });
    const rise = hasTarget ? y(value) - y(R[t]) : -1; // of the target above the dot
    const below = rise >= 0 && rise < 24;
    const label = isNear ? `V${isEnd ? "" : sub(t)}=${num(value)}` : num(value);
    text(x, at + (below ? 20 : -11), label, {
      kind: "halo",
      bold: isNear,
      fill: "var(--state)",
    });
  }
}

function drawBeforeAndAfter({ text }, { sample, token, to, after, post }) {
  if (token === null || !sample.mask[token]) return;
  const T = texts();
  const next = after(token) ?? (to === sample.length ? to : null);
  const word = (t, said) => {
    if (t === null || t > to) return;
    text(post(t), PLOT_END + 17, said, {
      kind: "ui halo",
      bold: 650,
      size: 11,
      fill: "var(--pick)",
    });
  };
  word(token, T.before);
  word(next, T.after);
}

function drawBar({ add, text }, scene, t, x, top, y) {
  if (!has(x)) return;
  const left = scene.mid(t) - scene.gap * 0.36;
  const right = scene.mid(t) + scene.gap * 0.36;
  const height = x === 0 ? 0 : Math.max(1.5, (Math.abs(x) / top) * 17);
  add("line", { x1: left, x2: right, y1: y, y2: y, class: "bar-line" });
  add("rect", { x: left, width: 9, y: x < 0 ? y : y - height, height, fill: tone(x) });
  text(scene.mid(t) + 6, y - 4, num(x, { sign: true }), { bold: scene.isChosen(t) });
}

function drawNumbers(tools, scene) {
  const { text } = tools;
  const { sample, columns, from, to, r, d, a, mid, weights } = scene;
  const largest = (column) =>
    Math.max(1e-9, ...column.slice(from, to).filter(has).map(Math.abs));
  const tops = { r: largest(r), d: largest(d) };
  for (let t = from; t < to; t++) {
    if (!sample.mask[t]) {
      text(mid(t), ROW.r - 4, "🔧");
      continue;
    }
    drawBar(tools, scene, t, r[t], tops.r, ROW.r);
    drawBar(tools, scene, t, d[t], tops.d, ROW.d);
    const inFan = scene.isChosen(t) && weights.length;
    if (!inFan) text(mid(t), ROW.A, num(a[t], { sign: true }));
    const w = columns.whitened?.[t];
    const mark = flipped(columns, t) ? "⇅" : "";
    text(mid(t), ROW.W, num(w, { sign: true }) + mark, {
      bold: scene.isChosen(t),
      fill: has(w) ? tone(w) : null,
    });
  }
}

// A token's box fills its gap. A character that is split over several tokens is one box with
// cells.
function drawBoxes(tools, scene) {
  const top = scale();
  for (const group of groups(scene.sample)) {
    const from = Math.max(group.from, scene.from);
    const to = Math.min(group.to, scene.to);
    if (from >= to) continue;
    const isOne = group.to - group.from === 1;
    for (let t = from; t < to; t++) drawCell(tools, scene, t, { from, to, isOne, top });
    const word = visible(group.text, 24);
    if (isOne) {
      drawToken(tools, scene, from, word || "∅", top);
    } else {
      const x = (scene.post(from) + scene.post(to)) / 2;
      const node = tools.text(x, ROW.box + 18, word, { kind: "ui halo", bold: 650 });
      fit(node, (to - from) * scene.gap - 14);
    }
  }
}

function drawCell({ add, text }, { sample, columns, post, mid, gap }, t, { from, to, isOne, top }) {
  const strength = level(columns[state.color]?.[t], top);
  const isTool = !sample.mask[t];
  const first = t === from ? 5 : 0;
  const last = t === to - 1 ? 5 : 0;
  add("rect", {
    x: post(t) + first,
    y: ROW.box,
    width: gap - first - last,
    height: ROW.boxHeight,
    rx: isOne ? 5 : 0,
    fill: isTool ? "var(--none)" : colour(strength),
    class: isOne && !isTool ? "box" : "box dashed",
  });
  const on = ink(isTool ? null : strength);
  if (!isOne) text(mid(t), ROW.box + 32, hex(sample.token_bytes[t]), { size: 9, fill: on });
  const mark = badges(sample, t);
  if (mark) text(post(t) + gap - 7, ROW.box + 11, mark, { kind: "end", size: 12, fill: on });
}

function drawToken({ text }, { sample, columns, mid, gap }, t, word, top) {
  const isTool = !sample.mask[t];
  const x = columns[state.color]?.[t];
  const fill = ink(isTool ? null : level(x, top));
  fit(text(mid(t), ROW.box + 18, word, { kind: "ui", bold: 650, fill }), gap - 14);
  const number = isTool ? "–" : `${QUANTITIES[state.color]} ${shown(state.color, x)}`;
  text(mid(t), ROW.box + 32, number, { size: 10, fill });
}

// Every later δ comes back to the chosen token, in part: the width of a ribbon is its weight.
function drawFan(tools, scene) {
  const { add, text } = tools;
  const { sample, token, to, acts, a, d, weights, mid, post, gap } = scene;
  if (token === null || !sample.mask[token] || !weights.length) return;
  const ahead = acts.filter((t) => t >= token);
  const x0 = mid(token);
  const top = ROW.fan + 14;
  const end = ROW.A - 20;
  ahead.forEach((t, k) => {
    const weight = weights[k];
    if (t >= to || !has(weight)) return;
    const x = mid(t);
    add("path", {
      d: `M${x} ${top} C${x} ${top + 42} ${x0} ${top + 22} ${x0} ${end}`,
      class: "ribbon",
      stroke: tone(d[t]),
      "stroke-width": Math.max(0.7, 8 * weight),
      "stroke-opacity": 0.18 + 0.5 * weight,
    });
    const times = k === 0 ? "×1" : `×${num(weight, { digits: 2 })}`;
    text(x, top - 3, times, { kind: "halo", size: 11 });
  });
  const beyond = ahead.filter((t) => t >= to).length;
  if (beyond) text(post(to) - 4, ROW.fan + 34, `+${beyond} →`, { kind: "halo end quiet" });
  const width = Math.min(gap, 108) - 4;
  add("rect", { x: x0 - width / 2, y: ROW.A - 17, width, height: 23, rx: 6, class: "sum" });
  const name = gap > 88 ? `A${sub(token)} ` : "";
  text(x0, ROW.A, name + num(a[token], { sign: true }), {
    id: "picture-A",
    bold: true,
    fill: tone(a[token]),
  });
}

function drawEdges({ text }, { sample, from, to, width }) {
  const y = ROW.box + 22;
  if (from > 0) text(LEFT - 14, y, `‹${from}`, { kind: "end quiet" });
  const more = sample.token_bytes.length > to;
  if (more) text(width - 4, y, `${sample.length - to}›`, { kind: "end quiet" });
}

function drawHits({ add }, { sample, from, to, post, gap }) {
  for (let t = from; t < to; t++) {
    const area = { x: post(t), y: ROW.box - 3, width: gap, height: ROW.height - ROW.box };
    const names = { "data-sample": sample.position, "data-token": t };
    add("rect", { ...area, ...names, class: "hit" });
  }
}

// ---- text that must fit ----

const FITTED = 15; // px, before it is made smaller

function fit(node, room) {
  node.dataset.fit = room;
  node.style.fontSize = `${FITTED}px`;
}

function fitAll(root) {
  for (const node of root.querySelectorAll("text[data-fit]")) {
    const room = Number(node.dataset.fit);
    const width = node.getComputedTextLength();
    if (width > room) node.style.fontSize = `${Math.max(8, (FITTED * room) / width)}px`;
    while (node.getComputedTextLength() > room && node.textContent.length > 2) {
      const characters = [...node.textContent.replace(/…$/, "")];
      node.textContent = characters.slice(0, -1).join("") + "…";
    }
  }
}

// ---- the whole ----

function aboutSample(sample) {
  const T = texts();
  const { est, gamma, lam } = settings();
  const by = usesLam(est)
    ? `λ ${num(lam, { digits: 2 })}`
    : `${T.estimator} ${visible(labelOf(sample, est), 24)}`;
  const prompt = `${T.prompt} ${visible(sample.prompt, 40)}`;
  const score = `${T.score} ${num(sample.score, { digits: 2 })}`;
  const scalars = `γ ${num(gamma, { digits: 2 })} β ${num(sample.settings.kl_coef)}`;
  return `#${sample.position} · ${prompt} · ${score} · ${by} ${scalars}`;
}

export function drawFence() {
  const { sample, token } = shownToken();
  const picture = $("picture");
  picture.replaceChildren();
  $("about").textContent = sample ? aboutSample(sample) : "";
  if (!sample) return;
  const width = Math.max(560, picture.clientWidth || 800);
  const scene = sceneOf(sample, token, width);
  const root = svg("svg", { viewBox: `0 0 ${width} ${ROW.height}`, height: ROW.height });
  const tools = pen(root);
  drawBands(tools, scene);
  drawCaptions(tools, scene);
  drawPosts(tools, scene);
  drawArrows(tools, scene);
  drawValues(tools, scene);
  drawBeforeAndAfter(tools, scene);
  drawNumbers(tools, scene);
  drawBoxes(tools, scene);
  drawFan(tools, scene);
  drawEdges(tools, scene);
  drawHits(tools, scene);
  picture.append(root);
  fitAll(root);
  if (token !== null) picture.scrollLeft = scene.mid(token) - picture.clientWidth / 2;
}
