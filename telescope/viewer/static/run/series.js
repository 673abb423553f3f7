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

// Series with steps of their own -> one list of steps, and each series' values there. `onto` puts
// another column of a series there.
export function aligned(lines) {
  const [first] = lines;
  const isShared = lines.every(({ steps }) => steps === first.steps) && rises(first?.steps ?? []);
  if (isShared) {
    const columns = lines.map(({ values }) => values);
    return { steps: first?.steps ?? [], columns, onto: (_, values) => values };
  }
  const all = new Set();
  for (const { steps } of lines) for (const step of steps) all.add(step);
  const steps = [...all].sort((a, b) => a - b);
  const place = new Map(steps.map((step, i) => [step, i]));
  const onto = (own, values) => {
    const column = new Array(steps.length).fill(null);
    for (let i = 0; i < own.length; i++) column[place.get(own[i])] = values[i];
    return column;
  };
  return { steps, columns: lines.map(({ steps, values }) => onto(steps, values)), onto };
}

const rises = (steps) => steps.every((step, i) => i === 0 || step > steps[i - 1]);

// Several runs as one line: at every step the mean, the least and the largest of the runs that
// have a value there, and how many those are.
export function together(lines) {
  const { steps, columns } = aligned(lines);
  const out = { steps, values: [], low: [], high: [], count: [] };
  for (let i = 0; i < steps.length; i++) {
    let sum = 0;
    let count = 0;
    let low = Infinity;
    let high = -Infinity;
    for (const column of columns) {
      const value = column[i];
      if (!has(value)) continue;
      sum += value;
      count++;
      if (value < low) low = value;
      if (value > high) high = value;
    }
    out.values.push(count ? sum / count : null);
    out.low.push(count ? low : null);
    out.high.push(count ? high : null);
    out.count.push(count);
  }
  return out;
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
