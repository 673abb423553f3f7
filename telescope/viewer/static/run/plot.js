// One uPlot on the page. All plots share their crosshair and their zoom.
//
// A model: {steps, series: [{key, values, kind, look, axis}], bands: [[above, below, look]], unit,
// log, hasSecond, here, alarms, zoom, label}. `kind` is line, raw (faint), edge (of a band) or area.

import { uPlot } from "../vendor/uplot.js";
import { logLabels, tickLabels } from "./format.js";
import { canvasColours, dashOf, faint } from "./palette.js";

const SYNC = "steps";
const FONT = '11px system-ui, -apple-system, "Segoe UI", "Noto Sans CJK SC", sans-serif';
const AXIS_WIDE = 50;
const GAP_AND_TICK = 8;
const RULER = document.createElement("canvas").getContext("2d");
// 1, 2 and 5 times powers of ten
const NICE = Array.from({ length: 24 }, (_, k) => k - 12).flatMap((power) =>
  [1, 2, 5].map((digit) => Number(`${digit}e${power}`)),
);
const SHARED = ["mousemove", "mouseleave"]; // what other plots repeat

// What lies between two looks that need a new plot: the rest is only new data.
const shapeOf = (model) =>
  JSON.stringify([
    model.series.map(({ key, kind, look, axis }) => [key, kind, look, axis]),
    model.bands,
    model.unit,
    model.log,
    model.label,
    canvasColours().panel,
  ]);

export class Plot {
  // `on`: {cursor(index or null), choose(step), zoom([from, to] or null)}
  constructor(box, on) {
    this.box = box;
    this.on = on;
    this.shape = null;
    this.plot = null;
  }

  show(model, width, height) {
    this.model = model;
    const shape = shapeOf(model);
    const data = [model.steps, ...model.series.map((series) => series.values)];
    if (shape === this.shape) {
      this.plot.setData(data);
      this.resize(width, height);
      return;
    }
    const cursor = this.plot?.cursor;
    this.destroy();
    this.shape = shape;
    this.plot = new uPlot(this.options(width, height), data, this.box);
    if (cursor?.left >= 0) this.plot.setCursor({ left: cursor.left, top: cursor.top });
  }

  resize(width, height) {
    if (this.plot && (this.plot.width !== width || this.plot.height !== height)) {
      this.plot.setSize({ width, height });
    }
  }

  destroy() {
    this.plot?.destroy();
    this.plot = null;
    this.shape = null;
  }

  // Moves the crosshair by one point, for keys.
  move(by) {
    const { plot, model } = this;
    const last = model.steps.length - 1;
    const from = plot.cursor.idx ?? (by > 0 ? -1 : last + 1);
    const index = Math.max(0, Math.min(last, from + by));
    const left = plot.valToPos(model.steps[index], "x");
    plot.setCursor({ left, top: plot.bbox.height / devicePixelRatio / 2 });
    return model.steps[index];
  }

  // ---- what uPlot is told ----

  options(width, height) {
    const { model } = this;
    const colours = canvasColours();
    const axes = [this.axisOfSteps(colours), this.axisOfValues("y", model.unit, colours)];
    if (model.hasSecond) axes.push(this.axisOfValues("y2", "share", colours));
    return {
      width,
      height,
      padding: [8, model.hasSecond ? 0 : 10, 0, 0],
      legend: { show: false },
      focus: { alpha: 1 },
      scales: {
        x: { time: false, range: (_, low, high) => this.rangeOfSteps(low, high) },
        y: this.scaleOfValues(model.log),
        y2: { range: (_, _low, high) => [0, Math.max(high ?? 0, 0.01) * 1.05] },
      },
      axes,
      series: [{}, ...model.series.map((series) => this.looksOf(series, colours))],
      bands: model.bands.map(([above, below, look]) => ({
        series: [above + 1, below + 1],
        fill: faint(colours.line(look), 0.16),
      })),
      cursor: this.cursor(),
      hooks: {
        draw: [(plot) => this.drawMarks(plot, colours)],
        setCursor: [(plot) => this.on.cursor(plot.cursor.idx ?? null)],
        setSelect: [(plot) => this.selected(plot)],
        ready: [(plot) => this.listen(plot)],
      },
    };
  }

  rangeOfSteps(low, high) {
    if (this.model.zoom) return this.model.zoom;
    if (low === null) return [0, 1];
    return low === high ? [low - 1, high + 1] : [low, high];
  }

  scaleOfValues(log) {
    if (log)
      return { distr: 3, range: (_, low, high) => uPlot.rangeLog(low ?? 1, high ?? 10, 10, false) };
    return { range: (_, low, high) => paddedRange(low, high) };
  }

  axisOfSteps(colours) {
    return {
      ...looksOfAxis(colours),
      size: 22,
      gap: 3,
      space: 60,
      label: this.model.label,
      labelSize: 13,
      labelGap: 0,
      labelFont: FONT,
      incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 1e4, 2e4, 5e4, 1e5],
    };
  }

  axisOfValues(scale, unit, colours) {
    const isLog = scale === "y" && this.model.log;
    return {
      ...looksOfAxis(colours),
      scale,
      side: scale === "y2" ? 1 : 3,
      size: (_, labels) => widthFor(labels),
      gap: 4,
      space: 30,
      incrs: isLog ? undefined : NICE,
      grid: { show: scale === "y", stroke: colours.grid, width: 1 },
      values: (_, ticks) => (isLog ? logLabels(ticks, unit) : tickLabels(ticks, unit)),
    };
  }

  looksOf({ kind, look, axis }, colours) {
    const colour = colours.line(look);
    const usual = { scale: axis ?? "y", spanGaps: true, points: { show: false } };
    if (kind === "edge") return { ...usual, stroke: "transparent", width: 0 };
    if (kind === "raw") return { ...usual, stroke: faint(colour, 0.28), width: 1 };
    if (kind === "area") return { ...usual, stroke: colours.panel, width: 1, fill: colour };
    return {
      ...usual,
      stroke: colour,
      width: 1.75,
      dash: dashOf(look),
      points: { show: (plot) => plot.data[0].length <= 25, size: 4, fill: colour, stroke: colour },
    };
  }

  cursor() {
    return {
      x: true,
      y: false,
      drag: { x: true, y: false, setScale: false, dist: 6 },
      points: { size: (_, index) => (isMarked(this.model.series[index - 1]) ? 7 : 0) },
      bind: { dblclick: () => () => this.doubled() },
      sync: {
        key: SYNC,
        setSeries: false,
        scales: ["x", null],
        filters: { pub: (type) => SHARED.includes(type) },
      },
    };
  }

  // ---- what the visitor does ----

  selected(plot) {
    const { left, width } = plot.select;
    if (width < 6) return;
    const ends = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.dragged = true;
    const [from, to] = [Math.floor(ends[0]), Math.ceil(ends[1])];
    if (to > from) this.on.zoom([from, to]);
  }

  // A click opens a step; while the plot is zoomed, the page waits whether a second one follows.
  listen(plot) {
    // The page may have moved the plot since it was drawn.
    plot.over.addEventListener("mouseenter", () => plot.syncRect());
    plot.over.addEventListener("mousedown", () => {
      this.dragged = false;
    });
    plot.over.addEventListener("click", (event) => {
      if (this.dragged) return;
      const step = plot.posToVal(event.offsetX, "x");
      clearTimeout(this.waiting);
      if (!this.model.zoom) this.on.choose(step);
      else this.waiting = setTimeout(() => this.on.choose(step), 300);
    });
  }

  doubled() {
    clearTimeout(this.waiting);
    this.on.zoom(null);
  }

  // ---- marks: the step that is shown, and alarms ----

  drawMarks(plot, colours) {
    const { here, alarms } = this.model;
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    ctx.save();
    const across = (step) => {
      const x = Math.round(plot.valToPos(step, "x", true));
      return x >= bbox.left && x <= bbox.left + bbox.width ? x : null;
    };
    const rule = (x, colour, dash) => {
      ctx.strokeStyle = colour;
      ctx.lineWidth = ratio;
      ctx.setLineDash(dash.map((length) => length * ratio));
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    };
    const triangle = (x, y, colour, high) => {
      ctx.fillStyle = colour;
      ctx.beginPath();
      ctx.moveTo(x - 5 * ratio, y);
      ctx.lineTo(x + 5 * ratio, y);
      ctx.lineTo(x, y + high * ratio);
      ctx.fill();
    };
    for (const step of alarms) {
      const x = across(step);
      if (x === null) continue;
      rule(x, colours.alarm, [3, 3]);
      triangle(x, bbox.top, colours.alarm, 8);
    }
    const x = here === null ? null : across(here);
    if (x !== null) {
      rule(x, colours.here, []);
      triangle(x, bbox.top + bbox.height, colours.here, -7);
    }
    ctx.restore();
  }
}

const isMarked = (series) =>
  series !== undefined && series.kind !== "edge" && series.kind !== "raw";

// All plots of a page have axes of one width, unless a label needs more: 1.10e−6.
const widthFor = (labels) => {
  RULER.font = FONT;
  const widths = (labels ?? []).map((label) => RULER.measureText(label ?? "").width);
  return Math.max(AXIS_WIDE, ...widths.map((width) => Math.ceil(width) + GAP_AND_TICK));
};

const looksOfAxis = (colours) => ({
  font: FONT,
  stroke: colours.ink,
  grid: { show: false },
  ticks: { stroke: colours.axis, width: 1, size: 3 },
  border: { show: true, stroke: colours.axis, width: 1 },
});

// Room above and below. From 0 where the values are positive and not far from it.
function paddedRange(low, high) {
  if (low === null || high === null) return [0, 1];
  if (low === high) {
    const room = Math.abs(low) * 0.1 || 1;
    return low === 0 ? [0, 1] : [low - room, high + room];
  }
  const room = (high - low) * 0.08;
  const isNearZero = low >= 0 && low < 0.6 * high;
  return [isNearZero ? 0 : low - room, high + room];
}
