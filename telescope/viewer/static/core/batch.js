// How much of a step was recorded.

import { run, step } from "./data.js";

// How many samples the batch had, by the run's config; null where that is not known.
export function batchSize() {
  const of = (key) => run.value?.config?.find((row) => row.key === key)?.value;
  const size = of("rollout.batch_size") * of("rollout.n");
  const recorded = step.value.index.length;
  return Number.isInteger(size) && size >= recorded ? size : null;
}
