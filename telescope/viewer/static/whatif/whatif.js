// The what-if: the same rollout and the same critic with another γ, λ, estimator or loss. The page
// computes GAE's recursion itself; everything else is asked from Python once the choice rests.

import { columns, pathIn, resource, step, stepShown, withArrays } from "../core/data.js";
import { computed, effect, signal } from "../vendor/preact.js";
import { gaeOf, lamOf, momentsOf, scaledMoments, weightsOf, whitenedOf, writtenOf } from "./gae.js";
import { isLocal, queryOf, tried } from "./tried.js";

const REST = 120; // ms without a change before Python is asked

// ---- computed here ----

// What does not change while λ is dragged.
const prepared = computed(() => {
  const found = columns.value;
  if (!found?.columns.values || !found.columns.token_level_rewards) return null;
  const { advantages, mask } = found.columns;
  return { ...found, written: writtenOf(found), recorded: momentsOf(advantages, mask) };
});

// GAE's settings of an estimator whose λ is fixed are that λ alone.
function gaeSettings({ offer, gamma, settings }) {
  const lam = offer.recursion === "lam" ? settings.lam : offer.recursion;
  const { lam_alpha = null, lam_critic = null } = settings;
  return { gamma, lam, lam_alpha, lam_critic };
}

function computedHere(now) {
  const data = prepared.value;
  if (data === null) return null;
  const settings = gaeSettings(now);
  const made = gaeOf(data, settings);
  const { mask } = data.columns;
  const { settings: recorded, whiten: batch } = step.value;
  const moments = now.whiten
    ? scaledMoments(
        momentsOf(made.advantages, mask),
        data.recorded,
        recorded.whiten && batch?.std ? batch : null,
      )
    : { mean: 0, std: 1 };
  const whitened = now.whiten ? whitenedOf(made.advantages, mask, moments) : made.advantages;
  return {
    offsets: data.offsets,
    columns: { ...made, whitened },
    whiten: moments,
    weights: (row) => weightsOf(now.gamma * lamOf(settings, data.written[row]), data.written[row]),
  };
}

// ---- computed by Python ----

const wanted = computed(() => {
  const now = tried.value;
  if (!now?.changed || isLocal(now) || stepShown.value === null) return null;
  return pathIn(`/steps/${stepShown.value}/whatif?${queryOf(now)}`);
});

const rested = signal(null);
let timer = 0;
effect(() => {
  const path = wanted.value;
  clearTimeout(timer);
  if (path === null) rested.value = null;
  else {
    timer = setTimeout(() => {
      rested.value = path;
    }, REST);
  }
});

export const asked = resource(() => rested.value, {
  make: (answer, path) => ({ ...withArrays(answer), path }),
});

function computedThere() {
  const found = asked.value;
  if (!found || found.path !== wanted.value) return null;
  return { ...found, weights: (row) => found.weights[row] ?? [] };
}

// ---- what is shown ----

// {step, offsets, columns, whiten, weights(row)}; null: as recorded, or not there yet.
const shown = computed(() => {
  const now = tried.value;
  if (!now?.changed) return null;
  const found = isLocal(now) ? computedHere(now) : computedThere();
  return found && { ...found, step: stepShown.value, views: new Map() };
});

export const changed = computed(() => tried.value?.changed ?? false);
// Python has not answered yet.
export const isPending = computed(
  () => wanted.value !== null && asked.value?.path !== wanted.value && !asked.error,
);
export const whitening = computed(() => shown.value?.whiten ?? null);

// Shares of clipped tokens under another loss: {recorded, now}.
export const clipFractions = computed(() => {
  const now = shown.value?.columns.clipped;
  const was = columns.value?.columns.clipped;
  if (!now || !was) return null;
  const { mask } = columns.value.columns;
  const share = (flags) => flags.reduce((sum, hit, i) => sum + (mask[i] ? hit : 0), 0);
  const written = mask.reduce((sum, m) => sum + m, 0);
  return { recorded: share(was) / written, now: share(now) / written };
});

// The numbers of a sample as they are shown: {columns, weights, changed}. The same object as long
// as they are the same.
export function viewOf(sample) {
  const now = shown.value;
  if (now === null || now.step !== sample.step || !(sample.position + 1 < now.offsets.length)) {
    return { columns: sample.columns, weights: sample.weights ?? [], changed: false };
  }
  const known = now.views.get(sample.position);
  if (known?.sample === sample) return known.view;
  const view = cutOut(now, sample);
  now.views.set(sample.position, { sample, view });
  return view;
}

function cutOut(now, sample) {
  const start = now.offsets[sample.position];
  const end = start + sample.mask.length;
  const made = Object.entries(now.columns).map(([name, all]) => [name, all.subarray(start, end)]);
  return {
    columns: { ...sample.columns, ...Object.fromEntries(made) },
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
