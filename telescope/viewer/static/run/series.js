// Arithmetic of the charts; nothing is drawn here. A gap is null.

import { has } from "../core/number.js";

// Exponential moving average without the bias of its start: the mean of the values so far, one
// that is k steps old with weight^k. So values far apart, like evaluations, stay as they are.
export function smoothed({ steps, values }, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  let before = null;
  return values.map((value, i) => {
    if (!has(value)) return null;
    const faded = before === null ? 0 : weight ** Math.max(steps[i] - before, 0);
    before = steps[i];
    sum = faded * sum + value;
    total = faded * total + 1;
    return sum / total;
  });
}

// Series with steps of their own -> one list of steps, and each series' values there.
export function aligned(lines) {
  const steps = [...new Set(lines.flatMap((line) => line.steps))].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  const columns = lines.map((line) => {
    const column = new Array(steps.length).fill(null);
    for (let i = 0; i < line.steps.length; i++) column[place.get(line.steps[i])] = line.values[i];
    return column;
  });
  return { steps, columns };
}

// Several runs as one line: at every step the mean, the least and the largest of the runs that
// have a value there, and how many those are.
export function together(lines) {
  const { steps, columns } = aligned(lines);
  const at = (i) => columns.map((column) => column[i]).filter(has);
  const found = steps.map((_, i) => at(i));
  const over = (of) => found.map((values) => (values.length ? of(values) : null));
  return {
    steps,
    values: over((values) => values.reduce((a, b) => a + b) / values.length),
    low: over((values) => Math.min(...values)),
    high: over((values) => Math.max(...values)),
    count: found.map((values) => values.length),
  };
}

// Columns on top of each other: each becomes the sum of those up to it.
export function stacked(columns) {
  const sum = new Array(columns[0]?.length ?? 0).fill(0);
  return columns.map((column) =>
    column.map((value, i) => {
      sum[i] += value ?? 0;
      return has(value) ? sum[i] : null;
    }),
  );
}

// Whether a logarithm can show the values: none below 0, one above.
export const fitsLog = (columns) =>
  columns.every((column) => column.every((value) => !has(value) || value >= 0)) &&
  columns.some((column) => column.some((value) => value > 0));

export const lastOf = (values) => values.findLast(has) ?? null;
export const firstOf = (values) => values.find(has) ?? null;

// The step of `steps` that is nearest to `wanted`; null if there is none.
export function nearest(steps, wanted) {
  const closer = (best, step) => (Math.abs(step - wanted) < Math.abs(best - wanted) ? step : best);
  return steps.length ? steps.reduce(closer) : null;
}
