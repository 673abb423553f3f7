// From a run's metrics to what a chart draws and its legend says.

import { unitOf } from "./charts.js";
import { aligned, fitsLog, lastOf, smoothed, stacked, together } from "./series.js";

const isZero = (values) => values.every((value) => value === 0 || value === null);
const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);

// Lines of one run: a line that is always 0, or equal to the first, says nothing new.
function linesOfRun(chart, series, names) {
  const there = names.filter((name) => series[name]);
  const first = series[there[0]];
  const worth = ({ values }) =>
    values === first.values || !(isZero(values) || same(values, first.values));
  return there
    .filter((name) => worth(series[name]))
    .map((name, look) => ({ key: name, label: name, look, unit: chart.unit, ...series[name] }));
}

// timing/rollout -> rollout, if all lines are of one room
function withShortNames(lines) {
  const rooms = new Set(lines.map(({ label }) => label.split("/")[0]));
  if (lines.length < 2 || rooms.size > 1) return lines;
  return lines.map((line) => ({ ...line, label: line.label.split("/").slice(1).join("/") }));
}

// One line per group of runs: their mean, with a band where there are several.
function linesOfGroups(chart, groups, seriesOf, metric) {
  return groups.flatMap(({ key, label, look, ids }) => {
    const found = ids.flatMap((id) => seriesOf(id)[metric] ?? []);
    const line = { key, label, look, unit: chart.unit };
    if (found.length > 1) return [{ ...line, members: found }];
    return found.map((one) => ({ ...line, ...one }));
  });
}

function smoothLine(line, weight) {
  if (!line.members) return { ...line, raw: line.values, values: smoothed(line, weight) };
  const members = line.members.map((each) => ({
    steps: each.steps,
    values: smoothed(each, weight),
  }));
  return { ...line, ...together(members), total: members.length };
}

// What a chart shows. `groups`: runs laid over each other by one metric, or null for one run.
// `isSimple`: one line.
export function modelOf(chart, { seriesOf, id, groups, smooth, log, isSimple }) {
  const shown = groups ? groups.flatMap(({ ids }) => ids) : [id];
  const metric = [chart.main, ...chart.lines].find((name) =>
    shown.some((id) => seriesOf(id)[name]),
  );
  if (metric === undefined) return null;
  const found = groups
    ? linesOfGroups(chart, groups, seriesOf, metric)
    : withShortNames(linesOfRun(chart, seriesOf(id), isSimple ? [metric] : chart.lines));
  if (!found.length) return null;
  const lines = found.map((line) => smoothLine(line, smooth));
  const isStacked = chart.stacked && !groups && !isSimple;
  const model = isStacked
    ? stackModel(chart, lines)
    : lineModel(chart, lines, { smooth, log, groups });
  return { ...model, metric };
}

function stackModel(chart, lines) {
  const { steps, columns } = aligned(lines);
  const sums = stacked(columns);
  const series = lines.map((line, i) => ({
    key: line.key,
    kind: "area",
    look: line.look,
    values: sums[i],
  }));
  const legend = lines.map((line, i) => legendOf(line, columns[i])).reverse();
  return { steps, series: series.reverse(), bands: [], legend, log: false, unit: chart.unit };
}

function lineModel(chart, lines, { smooth, log, groups }) {
  const isSecond = (line) => !groups && line.key === chart.second;
  const shares = lines.map((line) => (isSecond(line) ? { ...line, unit: "share" } : line));
  const all = shares.flatMap((line) => columnsOf(line, isSecond(line), smooth));
  const { steps, columns, onto } = aligned(all);
  const isLog = log && fitsLog(columns.filter((_, i) => all[i].axis === "y"));
  const series = all.map((each, i) => ({
    key: each.key,
    kind: each.kind,
    look: each.look,
    axis: each.axis,
    values: isLog && each.axis === "y" ? columns[i].map((x) => (x > 0 ? x : null)) : columns[i],
  }));
  const at = (key, kind) => all.findIndex((each) => each.key === key && each.kind === kind);
  const bands = shares
    .filter((line) => line.low)
    .map((line) => [at(line.key, "edge") + 1, at(line.key, "edge"), line.look]);
  const legend = shares.map((line) => {
    const own = (values) => (values ? onto(line.steps, values) : null);
    return legendOf(line, columns[at(line.key, "line")], {
      raw: smooth ? own(line.raw) : null,
      low: own(line.low),
      high: own(line.high),
      count: own(line.count),
    });
  });
  const hasSecond = shares.some(isSecond);
  return {
    steps,
    series,
    bands,
    legend,
    log: isLog,
    linear: log && !isLog,
    hasSecond,
    unit: chart.unit,
  };
}

// The columns of a line, those that lie behind first.
function columnsOf(line, isSecond, smooth) {
  const usual = { key: line.key, look: line.look, axis: isSecond ? "y2" : "y", steps: line.steps };
  const edges = line.low
    ? [
        { ...usual, kind: "edge", values: line.low },
        { ...usual, kind: "edge", values: line.high },
      ]
    : [];
  const raw = smooth && line.raw ? [{ ...usual, kind: "raw", values: line.raw }] : [];
  return [...edges, ...raw, { ...usual, kind: "line", values: line.values }];
}

function legendOf(line, values, more = {}) {
  const { key, label, look, unit, total } = line;
  return {
    key,
    label,
    look,
    unit: unit ?? unitOf(key),
    total,
    values,
    last: lastOf(values),
    ...more,
  };
}
