// V along right and wrong answers of a step: the mean, and a band of one σ to either side.

import { $, el, num, svg } from "./tools.js";
import { store, texts } from "./state.js";

const WIDE = 460;
const HIGH = 170;
const AXIS = 34;
const FLOOR = 22;
const ROOF = 8;
const SIDES = ["right", "wrong"];

// The lowest and the highest number of all bands.
function rangeOf(sides) {
  const ends = sides.flatMap(({ mean, spread }) =>
    mean.flatMap((m, i) => [m - spread[i], m + spread[i]]),
  );
  const low = Math.min(0, ...ends);
  const high = Math.max(...ends);
  return [low, high > low ? high : low + 1];
}

function scales([low, high], points) {
  const X = (i) => AXIS + (i / Math.max(points - 1, 1)) * (WIDE - AXIS - 8);
  const Y = (v) => HIGH - FLOOR - ((v - low) / (high - low)) * (HIGH - FLOOR - ROOF);
  return [X, Y];
}

const joined = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

function bandOf(name, { mean, spread }, X, Y) {
  const above = mean.map((m, i) => [X(i), Y(m + spread[i])]);
  const below = mean.map((m, i) => [X(i), Y(m - spread[i])]).reverse();
  return svg("polygon", { points: joined([...above, ...below]), class: `band ${name}` });
}

function lineOf(name, { mean }, X, Y) {
  const points = joined(mean.map((m, i) => [X(i), Y(m)]));
  const dots = mean.map((m, i) => {
    const dot = svg("circle", { cx: X(i).toFixed(1), cy: Y(m).toFixed(1), r: 2.2 });
    dot.append(svg("title", {}, `${i * 10} %: V = ${num(m)}`));
    return dot;
  });
  return svg("g", { class: `path ${name}` }, svg("polyline", { points }), ...dots);
}

function axesOf([low, high], points, X, Y) {
  const marks = [low, high].map((v) =>
    svg("text", { x: AXIS - 4, y: Y(v) + 4, "text-anchor": "end" }, num(v, { digits: 2 })),
  );
  const parts = [0, Math.floor(points / 2), points - 1].map((i) =>
    svg("text", { x: X(i), y: HIGH - 6, "text-anchor": "middle" }, `${i * 10} %`),
  );
  const zero = svg("line", { x1: AXIS, x2: WIDE - 8, y1: Y(0), y2: Y(0), class: "zero" });
  return [zero, ...marks, ...parts];
}

function saidOf(name, { count, mean }) {
  return texts().path(texts().filters[name], count, num(mean[0]), num(mean.at(-1)));
}

export function drawPaths() {
  const paths = store.paths;
  const there = SIDES.filter((name) => paths?.[name]?.count);
  $("paths-box").hidden = !there.length;
  if (!there.length) return;
  const sides = there.map((name) => paths[name]);
  const points = sides[0].mean.length;
  const range = rangeOf(sides);
  const [X, Y] = scales(range, points);
  const said = there.map((name) => saidOf(name, paths[name]));
  const plot = svg(
    "svg",
    { viewBox: `0 0 ${WIDE} ${HIGH}`, role: "img", "aria-label": said.join("; ") },
    ...axesOf(range, points, X, Y),
    ...there.map((name) => bandOf(name, paths[name], X, Y)),
    ...there.map((name) => lineOf(name, paths[name], X, Y)),
  );
  const legend = there.map((name, i) =>
    el("li", { class: `path ${name}`, "data-path": name }, said[i]),
  );
  $("paths").replaceChildren(plot, el("ul", {}, ...legend), el("p", {}, texts().pathRule));
}
