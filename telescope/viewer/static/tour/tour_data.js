// The tour's data: of the shown answer, or of the built-in example where there is none.

import { pathIn, resource, run, runs, sampleShown, step, stepShown } from "../core/data.js";
import { go, state } from "../core/state.js";
import { isKid, lang } from "../core/text.js";
import { computed, signal } from "../vendor/preact.js";

// Nothing was recorded, as far as is known by now.
const isNothing = computed(() => {
  if (run.value === null) return Boolean(runs.error || run.error) || runs.value?.runs.length === 0;
  if (run.value.ledger.length === 0) return true;
  return step.value === null ? Boolean(step.error) : step.value.index.length === 0;
});
// Whether the built-in example is shown: wished for, or there is nothing else.
export const isExample = computed(() => state.example.value === true || isNothing.value);

const own = computed(() => pathIn(`/steps/${stepShown.value}/samples/${sampleShown.value}/tour`));
const isShown = computed(() => state.view.value === "tour");

export const tourData = resource(() => {
  if (!isShown.value) return null;
  if (isExample.value) return "api/tour";
  return sampleShown.value === null ? null : own.value;
});

// The example has the same numbers in two languages.
export const tour = computed(() => tourData.value?.languages?.[lang.value] ?? tourData.value);

// Which of the four texts is read.
const skin = computed(() => (isKid.value ? `kid_${lang.value}` : lang.value));
export const say = (texts) => texts[skin.value];

// ---- where the visitor is: every step is first a question, then its truth ----

export const steps = computed(() => tour.value?.steps ?? []);
export const stop = computed(() => Math.min(state.stop.value, 2 * steps.value.length));
export const isEnd = computed(() => stop.value === 2 * steps.value.length);
export const stepIndex = computed(() => Math.floor(stop.value / 2));
export const current = computed(() => steps.value[stepIndex.value] ?? null);
export const isRevealed = computed(() => stop.value % 2 === 1);

// The ids of the steps whose truth is in the picture.
export const revealed = computed(
  () => new Set(steps.value.slice(0, Math.floor((stop.value + 1) / 2)).map((step) => step.id)),
);

export function goTo(next) {
  go({ stop: Math.max(0, Math.min(next, 2 * steps.peek().length)) });
}
export const forward = () => goTo(stop.peek() + 1);
export const back = () => goTo(stop.peek() - 1);

// ---- guesses: path of the data and step -> what was said ----

const guesses = signal({});
const key = (step) => `${isExample.value ? "example" : own.value}:${step.id}`;
export const guessOf = (step) => guesses.value[key(step)] ?? null;

export function setGuess(step, value) {
  guesses.value = { ...guesses.peek(), [key(step)]: value };
}
export const forget = () => {
  guesses.value = {};
};

// A number counts as right within a twentieth of the slider.
export function isRight({ guess }, said) {
  if (guess.kind === "choice") return guess.truth.includes(said);
  return Math.abs(said - guess.truth) <= (guess.high - guess.low) / 20;
}

// Where the slider stands before it is moved.
export const middle = ({ low, high }) => (low < 0 ? 0 : (low + high) / 2);
// The number that is being chosen: a ghost in the picture follows it.
export const pending = signal(null);

// The tour stays with what it began with: a run that goes on does not change it.
export function pin() {
  const isKnown = sampleShown.peek() !== null;
  if (isExample.peek()) go({ example: true }, { replace: true });
  else if (isKnown) {
    go({ step: stepShown.peek(), sample: sampleShown.peek(), follow: null }, { replace: true });
  }
}
