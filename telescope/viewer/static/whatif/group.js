// The numbers behind the picture of a group: outcomes, their mean and σ, and what A is made of.

import { columns, step } from "../core/data.js";
import { has, moments } from "../core/number.js";
import { computed } from "../vendor/preact.js";
import { tried } from "./tried.js";
import { scaleShown, viewOf } from "./whatif.js";

const UNKNOWN = "?"; // the formula of an estimator that is not known here

// Whether the estimator that is shown asks a critic.
export const asksCritic = computed(() => {
  const offer = tried.value?.offer;
  return offer ? Boolean(offer.needs.critic) : step.value?.settings?.critic !== false;
});

// The sum of an answer's rewards; its score where they were not recorded.
function outcomeOf({ position, score }) {
  const { offsets, columns: all } = columns.value;
  if (!all.token_level_rewards) return score;
  let total = 0;
  for (let i = offsets[position]; i < offsets[position + 1]; i++) {
    if (all.mask[i]) total += all.token_level_rewards[i];
  }
  return total;
}

function membersOf(sample, isGrouped) {
  const index = step.value.index;
  const own = index.find((row) => row.position === sample.position);
  if (!own) return [];
  const isSame = (row) =>
    has(own.group) ? row.group === own.group : row.prompt_key === own.prompt_key;
  const rows = isGrouped ? index.filter(isSame) : index;
  return rows.map((row) => ({ ...row, outcome: outcomeOf(row) }));
}

// {members, chosen, mean, std, baseline, scale, advantage, isOneNumber}; null: not there yet, or not
// recorded, or the estimator is not known.
// `baseline` and `scale` are null where A is not a difference from the outcome.
export function groupOf(sample, token) {
  if (!columns.value || columns.value.offsets.length <= sample.position + 1) return null;
  const offer = tried.value?.offer;
  if (!offer || offer.formula === UNKNOWN) return null;
  const isGrouped = Boolean(offer.needs.groups);
  const members = membersOf(sample, isGrouped);
  const chosen = members.find((row) => row.position === sample.position);
  const { columns: shown } = viewOf(sample);
  if (!chosen || !shown.advantages || !members.every((row) => has(row.outcome))) return null;
  const written = sample.mask.findIndex((m) => m);
  const i = token !== null && sample.mask[token] ? token : written;
  const advantage = shown.advantages[i] ?? null;
  const baseline = shown.baselines?.[i] ?? null;
  const scale = scaleShown(sample) ?? 1;
  const isDifference =
    has(baseline) && Math.abs((chosen.outcome - baseline) / scale - advantage) < 1e-4;
  return {
    members,
    chosen,
    isGrouped,
    ...moments(members.map((row) => row.outcome)),
    baseline: isDifference ? baseline : null,
    scale: isDifference ? scale : null,
    advantage,
    isOneNumber: sample.mask.every(
      (m, k) => !m || Math.abs(shown.advantages[k] - advantage) < 1e-6,
    ),
  };
}
