// The steps at which the page can stand: all recorded ones, or those that recorded one prompt.

import { computed } from "../vendor/preact.js";
import { onlyPrompt, pathIn, resource, run, runId } from "./data.js";

const ofPrompt = resource(
  () => (onlyPrompt.value && runId.value ? pathIn(`/prompts/${onlyPrompt.value}`) : null),
  { ownerOf: () => onlyPrompt.value },
);

export const stops = computed(() => {
  const recorded = run.value?.ledger ?? [];
  const rows = ofPrompt.signal.value.value?.rows;
  if (!onlyPrompt.value || !rows) return recorded;
  const steps = new Set(rows.map((row) => row.step));
  return recorded.filter((step) => steps.has(step));
});
