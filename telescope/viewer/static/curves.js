// The learning curves.

import { $, el, has, num, svg } from "./tools.js";
import { state, store, texts } from "./state.js";

const CURVES = [
  ["reward/score_mean"],
  ["reward/kl"],
  ["actor/pg_clipfrac"],
  ["actor/entropy"],
  ["eval/sampled_accuracy", "eval/greedy_accuracy"],
];
const WIDTH = 230;
const HEIGHT = 62;

const curvePoints = (name) => (store.run.curves[name] ?? []).filter(([, value]) => has(value));

function plotOf(lines, title, goTo) {
  const points = lines.flat();
  const ys = points.map(([, value]) => value);
  const last = Math.max(...points.map(([step]) => step), 1);
  const low = Math.min(...ys, 0);
  const high = Math.max(...ys, 1e-9);
  const X = (step) => 3 + (step / last) * (WIDTH - 6);
  const Y = (value) => HEIGHT - 5 - ((value - low) / (high - low || 1)) * (HEIGHT - 12);
  const here = X(state.step ?? 0);
  const plot = svg(
    "svg",
    {
      viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${title}: ${num(ys[0])} → ${num(ys.at(-1))}`,
    },
    svg("line", { x1: 0, x2: WIDTH, y1: Y(0), y2: Y(0), class: "zero" }),
    svg("line", { x1: here, x2: here, y1: 0, y2: HEIGHT, class: "here" }),
    ...lines.map((line, k) =>
      svg("polyline", {
        points: line.map(([step, value]) => `${X(step)},${Y(value)}`).join(" "),
        class: k ? "curve second" : "curve",
      }),
    ),
  );
  plot.addEventListener("click", (event) => {
    const step = (event.offsetX / plot.clientWidth) * last;
    const closer = (best, s) => (Math.abs(s - step) < Math.abs(best - step) ? s : best);
    if (store.run.steps.length) goTo(store.run.steps.reduce(closer));
  });
  return plot;
}

// `goTo`: shows a step.
export function drawCurves(goTo) {
  const titles = texts().curve;
  const figures = CURVES.map((names, i) => {
    const lines = names.map(curvePoints);
    const ends = lines.map((line) => (line.length ? num(line.at(-1)[1]) : "–"));
    const caption = el("figcaption", {}, titles[i], el("b", {}, ends.join(" / ")));
    const plot = lines.flat().length ? plotOf(lines, titles[i], goTo) : null;
    return el("figure", { "data-curve": names[0] }, caption, plot);
  });
  $("curves").replaceChildren(...figures);
}
