// The what-if: the same rollout and the same critic with another γ, λ, estimator or loss. The page
// computes GAE's recursion itself; everything else is asked from Python once the choice rests.

import { columns, pathIn, resource, step, stepShown, withArrays } from "../core/data.js";
import { rested } from "../core/rest.js";
import { computed } from "../vendor/preact.js";
import {
  addUp,
  cutter,
  decaysOf,
  deltasOf,
  lamOf,
  momentsOf,
  returnsOf,
  scaledMoments,
  weightsOf,
  whitenedOf,
  writtenOf,
} from "./gae.js";
import { isLocal, queryOf, tried } from "./tried.js";

const REST = 120; // ms without a change before Python is asked

// ---- computed here ----

// What does not change while γ or λ is dragged. `credit` is written anew by every frame: A of all
// samples.
const prepared = computed(() => {
  const found = columns.value;
  if (!found?.columns.values || !found.columns.token_level_rewards) return null;
  const { advantages, mask } = found.columns;
  const written = writtenOf(found);
  const credit = new Float64Array(mask.length);
  const recorded = advantages ? momentsOf(advantages, mask) : null;
  return { ...found, written, credit, recorded };
});

const gammaTried = computed(() => tried.value?.gamma ?? null);
const deltas = computed(() => deltasOf(prepared.value, gammaTried.value));

// GAE's settings of an estimator whose λ is fixed are that λ alone.
function gaeSettings({ offer, gamma, settings }) {
  const lam = offer.recursion === "lam" ? settings.lam : offer.recursion;
  const { lam_alpha = null, lam_critic = null } = settings;
  return { gamma, lam, lam_alpha, lam_critic };
}

// μ and σ need A of all samples; the columns are made for a sample when it is shown.
function computedHere(now) {
  const data = prepared.value;
  if (data === null) return null;
  const settings = gaeSettings(now);
  const decays = data.written.map((tokens) => decaysOf(settings, tokens));
  const made = { ...data, deltas: deltas.value, decays };
  decays.forEach(({ actor }, row) => {
    const own = cutter(data.offsets, row);
    addUp(own(data.columns.mask), own(made.deltas), actor, own(data.credit));
  });
  const moments = now.whiten ? momentsHere(data) : null;
  return {
    offsets: data.offsets,
    columnsOf: (row) => columnsHere(made, row, moments),
    whiten: moments ?? { mean: 0, std: 1 },
    weights: (row) => weightsOf(decays[row].actor, data.written[row]),
  };
}

function momentsHere({ credit, columns: { mask }, recorded }) {
  const { settings, whiten: batch } = step.value;
  const scaled = settings.whiten && batch?.std && recorded ? batch : null;
  return scaledMoments(momentsOf(credit, mask), recorded, scaled);
}

// The columns of one sample. `moments` is null where nothing is whitened.
function columnsHere({ offsets, columns: all, deltas: allDeltas, decays }, row, moments) {
  const own = cutter(offsets, row);
  const [mask, values, deltas] = [own(all.mask), own(all.values), own(allDeltas)];
  const returns = returnsOf({ mask, deltas, values }, decays[row].critic);
  const advantages = new Float64Array(mask.length);
  addUp(mask, deltas, decays[row].actor, advantages);
  const whitened = moments ? whitenedOf(advantages, mask, moments) : advantages;
  return { deltas, advantages, returns, whitened };
}

// ---- computed by Python ----

const wanted = computed(() => {
  const now = tried.value;
  if (!now?.changed || isLocal(now) || stepShown.value === null) return null;
  return pathIn(`/steps/${stepShown.value}/whatif?${queryOf(now)}`);
});

const askedFor = rested(wanted, REST, (path) => path === null);

export const asked = resource(() => askedFor.value, {
  make: (answer, path) => ({ ...withArrays(answer), path }),
});

function computedThere() {
  const found = asked.value;
  if (!found || found.path !== wanted.value) return null;
  return { ...found, columnsOf: cutFrom(found), weights: (row) => found.weights[row] ?? [] };
}

const cutFrom =
  ({ offsets, columns }) =>
  (row) => {
    const own = cutter(offsets, row);
    const cut = Object.entries(columns).map(([name, column]) => [name, own(column)]);
    return Object.fromEntries(cut);
  };

// ---- what is shown ----

// {step, offsets, columnsOf(row), whiten, weights(row)}; null: as recorded, or not there yet.
const shown = computed(() => {
  const now = tried.value;
  if (!now?.changed) return null;
  const found = isLocal(now) ? computedHere(now) : computedThere();
  return found && { ...found, step: stepShown.value, views: new Map() };
});

// The same, but for one change only until the numbers rest: what is out of sight while λ is dragged.
let changedAt = 0;
const shownAtRest = rested(shown, REST, (now) => {
  const isAlone = performance.now() - changedAt > REST;
  changedAt = performance.now();
  return isAlone || now === null;
});

export const changed = computed(() => tried.value?.changed ?? false);
// Python has not answered yet.
export const isPending = computed(
  () => wanted.value !== null && asked.value?.path !== wanted.value && !asked.error,
);
export const whitening = computed(() => shown.value?.whiten ?? null);

// Shares of clipped tokens under another loss: {recorded, now}.
export const clipFractions = computed(() => {
  const now = shown.value?.columns?.clipped;
  const was = columns.value?.columns.clipped;
  if (!now || !was) return null;
  const { mask } = columns.value.columns;
  const share = (flags) => flags.reduce((sum, hit, i) => sum + (mask[i] ? hit : 0), 0);
  const written = mask.reduce((sum, m) => sum + m, 0);
  return { recorded: share(was) / written, now: share(now) / written };
});

// The numbers of a sample as they are shown: {columns, weights, changed}, `changed` where these are
// not the recorded ones. The same object as long as they are the same. With `isSeen: false` they may
// lag behind while γ or λ is dragged.
export function viewOf(sample, { isSeen = true } = {}) {
  const now = isSeen ? shown.value : shownAtRest.value;
  if (now === null || now.step !== sample.step || !(sample.position + 1 < now.offsets.length)) {
    return { columns: sample.columns, weights: sample.weights ?? [], changed: false };
  }
  const known = now.views.get(sample.position);
  if (known?.sample === sample) return known.view;
  const view = cutOut(now, sample);
  now.views.set(sample.position, { sample, view });
  return view;
}

// A sample may be shown without its end.
function cutOut(now, sample) {
  const made = Object.entries(now.columnsOf(sample.position));
  const shown = made.map(([name, column]) => [name, column.subarray(0, sample.mask.length)]);
  return {
    columns: { ...sample.columns, ...Object.fromEntries(shown) },
    weights: now.weights(sample.position),
    changed: true,
  };
}

// What the difference of a sample is divided by, without a critic.
export function scaleShown(sample) {
  const now = shown.value;
  return now?.step === sample.step && now.scale ? now.scale[sample.position] : sample.scale;
}

// The settings that a sample is shown with: {label, gamma, lam, kl_coef}. λ is null where the
// estimator has none, and that of this sample where it depends on the length.
export function settingsShown(sample) {
  const now = tried.value;
  if (now === null) return sample.settings;
  const { lam } = gaeSettings(now);
  const length = sample.mask.reduce((sum, m) => sum + m, 0);
  return {
    label: now.offer.label,
    gamma: now.gamma,
    lam: now.offer.recursion === "lam" ? lamOf({ ...now.settings, lam }, length) : null,
    kl_coef: sample.settings.kl_coef,
  };
}
