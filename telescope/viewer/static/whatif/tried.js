// The settings that are tried: what the address says, and what was recorded where it says nothing.

import { step } from "../core/data.js";
import { go, state } from "../core/state.js";
import { computed } from "../vendor/preact.js";

const isOwn = (offer) => offer.name === step.value?.settings?.estimator;
const offerOf = (name) => step.value?.offers?.find((offer) => offer.name === name) ?? null;

// ---- the estimator's own settings in the address: "n:4,last_k:2" ----

function read(text) {
  const pairs = (text ?? "").split(",").map((pair) => pair.split(":"));
  const numbers = pairs.map(([name, x]) => [name, x === "none" ? null : Number(x)]);
  return Object.fromEntries(
    numbers.filter(([name, x]) => name && (x === null || Number.isFinite(x))),
  );
}

const write = (own) =>
  Object.entries(own)
    .map(([name, x]) => `${name}:${x ?? "none"}`)
    .join(",") || null;

// A setting other than γ and λ. The recorded value is no change.
export function trySetting({ name, value }, x) {
  const { [name]: _, ...others } = read(state.own.peek());
  go({ own: write(x === value ? others : { ...others, [name]: x }) });
}

export const resetAll = () =>
  go({ est: null, gamma: null, lam: null, own: null, whiten: null, loss: null });

// ---- what is tried ----

// The estimator: the address's if it can be tried. A run whose estimator cannot be computed here
// tries the first one with a λ as soon as γ or λ is moved.
const chosen = computed(() => {
  const asked = offerOf(state.est.value);
  if (asked?.available) return asked;
  const own = offerOf(step.value?.settings?.estimator);
  const isMoved = state.gamma.value !== null || state.lam.value !== null;
  if (own?.available || !isMoved) return own;
  return step.value?.offers.find((offer) => offer.available && offer.recursion === "lam") ?? own;
});

function settingsOf(offer, own) {
  const settings = Object.fromEntries(offer.settings.map(({ name, value }) => [name, value]));
  const lam = state.lam.value;
  if (lam !== null && "lam" in settings) {
    settings.lam = lam;
    if ("lam_alpha" in settings) settings.lam_alpha = null; // λ by length is replaced
  }
  for (const [name, x] of Object.entries(own)) if (name in settings) settings[name] = x;
  return settings;
}

// {offer, gamma, settings, whiten, loss, changed}; null before the step is there.
export const tried = computed(() => {
  const recorded = step.value?.settings;
  const offer = chosen.value;
  if (!recorded || !offer) return null;
  const gamma = offer.discounts ? (state.gamma.value ?? recorded.gamma) : recorded.gamma;
  const settings = settingsOf(offer, read(state.own.value));
  const whiten = state.whiten.value === null ? offer.whiten : state.whiten.value === "1";
  const losses = step.value.losses ?? [];
  const asked = losses.find((each) => each.name === state.loss.value && each.available);
  const loss = asked?.name ?? recorded.loss;
  const same = offer.settings.every(({ name, value }) => settings[name] === value);
  const changed =
    !isOwn(offer) ||
    gamma !== recorded.gamma ||
    !same ||
    whiten !== recorded.whiten ||
    loss !== recorded.loss;
  return { offer, gamma, settings, whiten, loss, changed };
});

// The same as a query for Python.
export function queryOf({ offer, gamma, settings, whiten, loss }) {
  const out = new URLSearchParams({ estimator: offer.name });
  if (offer.discounts) out.set("gamma", gamma);
  for (const { name, value } of offer.settings) {
    if (settings[name] !== value) out.set(name, settings[name] ?? "none");
  }
  if (whiten !== offer.whiten) out.set("whiten", whiten ? "1" : "0");
  if (loss !== step.value.settings.loss) out.set("loss", loss);
  return out.toString();
}

// Whether the page can compute it: GAE's recursion, and the same loss.
export function isLocal({ offer, loss }) {
  return offer.recursion !== null && loss === step.value.settings.loss;
}
