// The arithmetic of the token that is shown, asked once the pointer rests on it.

import { resource, sample, tokenPath } from "../core/data.js";
import { rested } from "../core/rest.js";
import { get } from "../core/source.js";
import { computed } from "../vendor/preact.js";
import { tokenSeen } from "./chosen.js";

const REST = 60; // ms
const MOST_KEPT = 300;

// Answers of a recorded step do not change: the latest are kept. Failures never are.
const kept = new Map();

export async function remembered(path) {
  if (kept.has(path)) return kept.get(path);
  const answer = await get(path);
  if (kept.size >= MOST_KEPT) kept.delete(kept.keys().next().value);
  kept.set(path, answer);
  return answer;
}

const wanted = computed(() => {
  if (!sample.value || tokenSeen.value === null) return null;
  return tokenPath(`/tokens/${tokenSeen.value}`);
});

const asked = rested(
  wanted,
  REST,
  (path, before) => path === null || before === null || kept.has(path),
);

// {traces, words, path}
export const terms = resource(() => asked.value, {
  ask: remembered,
  make: (answer, path) => ({ ...answer, path }),
  ownerOf: () => sample.value?.path,
});

// Whether the terms that are there belong to the token that is shown.
export const isCurrent = computed(() => terms.signal.value.value?.path === wanted.value);
