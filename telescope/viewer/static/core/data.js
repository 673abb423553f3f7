// What was loaded, as signals. A resource is {value, error, loading}; a failure is asked again.

import { computed, effect, signal, untracked } from "../vendor/preact.js";
import { nearest } from "./number.js";
import { get, isLive } from "./source.js";
import { go, state } from "./state.js";

const EMPTY = { value: null, error: null, loading: false };
const POLL = 2000; // ms
const GATHER = 400; // ms, for the metrics of several runs
const MOST_RUNS = 50; // in the charts of a list of runs

// Loads the path that `pathOf` gives whenever it changes; null: nothing to load. The old value
// stays until the new one is there, unless it belongs to another `owner`.
// `ask(path)` fetches, `make(answer, path)` prepares.
export function resource(pathOf, { ask = get, make = (answer) => answer, ownerOf = null } = {}) {
  const found = signal(EMPTY);
  let turn = 0;
  let owner;

  async function load(path, keep) {
    const mine = ++turn;
    const before = keep ? found.peek().value : null;
    found.value = { value: before, error: null, loading: true };
    try {
      const value = make(await ask(path), path);
      if (mine === turn) found.value = { value, error: null, loading: false };
    } catch (error) {
      if (mine === turn) found.value = { value: before, error, loading: false };
    }
  }

  effect(() => {
    const path = pathOf();
    const isSame = ownerOf === null || ownerOf() === owner;
    owner = ownerOf?.();
    untracked(() => {
      if (path !== null) load(path, isSame);
      else {
        turn++;
        found.value = EMPTY;
      }
    });
  });
  return {
    signal: found,
    get value() {
      return found.value.value;
    },
    get error() {
      return found.value.error;
    },
    get loading() {
      return found.value.loading;
    },
    peek: () => found.peek().value,
    reload: () => {
      const path = untracked(pathOf);
      return path === null ? null : load(path, true);
    },
  };
}

// ---- runs ----

export const runs = resource(() => "api/runs");

// The id of the run that is shown.
export const runId = computed(() => state.run.value ?? runs.value?.runs[0]?.id ?? null);

// The part of the page that is shown; null while it is not known yet.
export const viewShown = computed(() => {
  if (state.view.value !== null) return state.view.value;
  if (state.run.value !== null) return "run";
  if (!runs.value) return runs.error ? "run" : null;
  return runs.value.runs.length > 1 ? "runs" : "run";
});

export const pathOf = (id, rest = "") => `api/runs/${encodeURIComponent(id)}${rest}`;
export const pathIn = (rest) => pathOf(runId.value, rest);

// A run that was deleted keeps what the page knows of it.
let before = null;
function keepDeleted(answer) {
  const isGone = answer.status === "deleted" && before?.id === answer.id;
  before = isGone ? { ...before, status: "deleted", silent_for: null, eta_s: null } : answer;
  return before;
}

export const run = resource(() => (runId.value === null ? null : pathIn("")), {
  make: keepDeleted,
  ownerOf: () => runId.value,
});

// ---- metrics: all names of the run, and those of runs laid over it ----

// id -> {series: {name: {steps, values}}, rows}
export const metrics = signal({});

export const shownRuns = computed(() => [
  ...new Set([runId.value, ...(state.with.value ?? [])].filter((id) => id !== null)),
]);

// A computed value that changes only when its content does, not with every poll.
export function stable(compute) {
  const content = computed(() => JSON.stringify(compute()));
  return computed(() => JSON.parse(content.value));
}

// The runs in the charts: in the list of runs the chosen ones, or all.
export const chartRuns = stable(() => {
  if (viewShown.value !== "runs") return shownRuns.value;
  const listed = (runs.value?.runs ?? []).map(({ id }) => id);
  return state.with.value?.filter((id) => listed.includes(id)) ?? listed.slice(0, MOST_RUNS);
});

const metricErrors = signal({});
export const metricError = (id) => metricErrors.value[id] ?? null;

// Answers that came close together are shown together: charts are drawn anew each time.
const arrived = new Map();
let inFlight = 0;
let waiting = null;

function publish() {
  clearTimeout(waiting);
  waiting = null;
  if (arrived.size) metrics.value = { ...metrics.peek(), ...Object.fromEntries(arrived) };
  arrived.clear();
}

async function loadMetrics(id) {
  inFlight++;
  try {
    arrived.set(id, await get(pathOf(id, "/metrics")));
    const { [id]: trouble, ...others } = metricErrors.peek();
    if (trouble !== undefined) metricErrors.value = others;
  } catch (error) {
    asked.delete(id);
    metricErrors.value = { ...metricErrors.peek(), [id]: error };
  }
  inFlight--;
  if (!inFlight) publish();
  else waiting ??= setTimeout(publish, GATHER);
}

// What a run's metrics were last asked for: its number of rows, or when it was written.
const asked = new Map();

function stampOf(id) {
  if (id === runId.value && run.value) return `${run.value.rows} ${run.value.updated}`;
  const listed = runs.value?.runs.find((each) => each.id === id);
  return listed ? `${listed.step} ${listed.updated}` : null;
}

// Charts grow even when no step was recorded: metrics are asked again when a stamp changes.
effect(() => {
  const wanted = chartRuns.value.map((id) => [id, stampOf(id)]);
  untracked(() => {
    for (const [id, stamp] of wanted) {
      if (stamp === null || asked.get(id) === stamp) continue;
      asked.set(id, stamp);
      loadMetrics(id);
    }
  });
});

// ---- a step ----

// The step that is shown: the address's, or the run's most instructive one.
export const stepShown = computed(() => {
  const recorded = run.value?.ledger ?? [];
  if (recorded.includes(state.step.value)) return state.step.value;
  if (state.follow.value) return recorded.at(-1) ?? null;
  if (state.step.value !== null) return nearest(recorded, state.step.value);
  return run.value?.instructive?.step ?? recorded.at(-1) ?? null;
});

const inStep = (rest) =>
  stepShown.value === null ? null : pathIn(`/steps/${stepShown.value}${rest}`);

export const step = resource(() => inStep(""), { ownerOf: () => runId.value });

// ---- the columns of a step, over all its samples ----

const ARRAYS = { float32: Float32Array, uint8: Uint8Array };

function decoded({ dtype, data }) {
  const bytes = Uint8Array.from(atob(data), (c) => c.charCodeAt(0));
  return new ARRAYS[dtype](bytes.buffer);
}

// base64 columns as typed arrays
export function withArrays(answer) {
  const columns = Object.entries(answer.columns).map(([name, column]) => [name, decoded(column)]);
  return { ...answer, columns: Object.fromEntries(columns) };
}

export const columns = resource(() => inStep("/columns"), {
  make: withArrays,
  ownerOf: () => `${runId.value}/${stepShown.value}`,
});

// ---- a sample ----

// The prompt that alone is listed, if one is.
export const onlyPrompt = computed(() =>
  state.filter.value?.includes("prompt") ? state.prompt.value : null,
);

// The address's sample, or another answer to the prompt that alone is listed.
export const sampleShown = computed(() => {
  const all = step.value?.index ?? [];
  const same = all.filter((row) => row.prompt_key === onlyPrompt.value);
  const index = same.length ? same : all;
  const recorded = (position) => index.some((row) => row.position === position); // a report has few
  if (recorded(state.sample.value)) return state.sample.value;
  const chosen = run.value?.instructive;
  if (chosen?.step === stepShown.value && recorded(chosen.sample)) return chosen.sample;
  return index.length ? mostStriking(index) : null;
});

// The wrong answer with the largest |A|; a right one if none is wrong.
function mostStriking(index) {
  const wrong = index.filter((row) => !row.right);
  const from = wrong.length ? wrong : index;
  const size = (row) => row.max_abs_a ?? 0;
  return from.reduce((best, row) => (size(row) > size(best) ? row : best)).position;
}

// The position is known once the step's list is there: until then the path stays.
let pathBefore = null;
const samplePath = computed(() => {
  const isThere = !step.value || step.value.step === stepShown.value;
  if (isThere) {
    pathBefore = sampleShown.value === null ? null : inStep(`/samples/${sampleShown.value}`);
  }
  return pathBefore;
});

// The sample before stays until the next one is there: its `position` tells which it is.
export const sample = resource(() => samplePath.value, {
  make: (answer, path) => ({ ...answer, path }),
  ownerOf: () => runId.value,
});

// The token that is shown: the address's, or the one that `telescope explain` begins with.
export const tokenShown = computed(() => {
  const found = sample.value;
  if (!found) return null;
  const length = found.token_ids.length;
  if (state.token.value !== null) return Math.min(state.token.value, length - 1);
  return length ? found.token : null;
});

// An address about the sample that is there, not about one that is on its way.
export const tokenPath = (rest) => `${sample.value?.path}${rest}`;

export const chooseToken = (token, options) =>
  go({ step: stepShown.peek(), sample: sampleShown.peek(), token }, options);

// ---- a run that goes on ----

export function poll() {
  if (!isLive) return;
  const again = () => {
    if (document.hidden) return;
    run.reload();
    if (!runs.value?.single) runs.reload();
  };
  setInterval(again, POLL);
  document.addEventListener("visibilitychange", again);
}
