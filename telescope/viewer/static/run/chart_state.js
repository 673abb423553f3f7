// What the charts show: which runs, which metrics, and what comes of them.

import {
  chartRuns,
  metrics,
  run,
  runId,
  runs,
  stable,
  stepShown,
  viewShown,
} from "../core/data.js";
import { nearest } from "../core/number.js";
import { go, state } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { computed } from "../vendor/preact.js";
import { chartsOf } from "./charts.js";
import { modelOf } from "./models.js";

const seriesOf = (id) => metrics.value[id]?.series ?? {};
export const isOverview = computed(() => viewShown.value === "runs");

// The metrics that any of the shown runs has, in the order of the first.
export const names = computed(() => [
  ...new Set(chartRuns.value.flatMap((id) => Object.keys(seriesOf(id)))),
]);

// "a-seed0", "a-seed1" -> "a"; names that begin differently are joined.
function commonName(each) {
  let length = 0;
  const [first] = each;
  while (length < first.length && each.every((name) => name[length] === first[length])) length++;
  const shared = first.slice(0, length).replace(/[-_.\s]*(seed)?[-_.\s]*$/, "");
  return shared || each.join(", ");
}

// Runs that differ only in their seed are one group; {key, label, ids, look}. null: one run alone.
export const groups = stable(() => {
  const ids = chartRuns.value;
  if (ids.length < 2 && !isOverview.value) return null;
  const listed = new Map((runs.value?.runs ?? []).map((each) => [each.id, each]));
  const found = new Map();
  for (const id of ids) {
    const key = listed.get(id)?.group ?? id;
    found.set(key, [...(found.get(key) ?? []), id]);
  }
  const nameOf = (id) => listed.get(id)?.name ?? id;
  return [...found].map(([key, ids], look) => {
    const many = ids.length > 1;
    const label = many
      ? t("runs.seeds", { name: commonName(ids.map(nameOf)), n: ids.length })
      : nameOf(ids[0]);
    return { key, ids, look, label };
  });
});

export const charts = computed(() =>
  chartsOf(names.value, state.charts.value ?? [], { kid: isKid.value }),
);

// id of a chart -> its model
export const models = computed(() => {
  const found = new Map();
  for (const chart of charts.value) {
    const model = modelOf(chart, {
      seriesOf,
      id: runId.value,
      groups: groups.value,
      smooth: Math.min(state.smooth.value, 0.995),
      log: Boolean(state.log.value),
      isSimple: isKid.value,
    });
    if (model) found.set(chart.id, model);
  }
  return found;
});

// ---- zoom, the shown step, alarms ----

export const zoom = computed(() => state.zoom.value?.split("-").map(Number) ?? null);

export const setZoom = (range) => {
  if (range || state.zoom.value) go({ zoom: range ? range.join("-") : null });
};

export const here = computed(() => (isOverview.value ? null : stepShown.value));

export const alarms = stable(() => (isOverview.value ? [] : (run.value?.alarms ?? [])));

// The steps that are marked in the charts.
const MARKED = ["serious", "warning"];
export const isMarked = ({ severity }) => MARKED.includes(severity);
export const marked = stable(() => [
  ...new Set(alarms.value.filter(isMarked).map(({ since }) => since)),
]);

// The recorded step that a click at `wanted` opens.
export const stepToOpen = (wanted) =>
  isOverview.value ? null : nearest(run.value?.ledger ?? [], wanted);

export function openStep(wanted) {
  const step = stepToOpen(wanted);
  if (step !== null) go({ view: "samples", step, follow: null });
}
