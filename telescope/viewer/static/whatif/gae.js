// GAE and whitening over all samples of a step, on flat columns: the numbers of one sample after
// those of the other, `offsets` telling where each begins. Python has the same arithmetic; the page
// computes it too, so that λ can be dragged.
//
//   δ[i] = r[i] + γ·V[i⁺] − V[i]      A[i] = δ[i] + γλ·A[i⁺]      R[i] = A[i] + V[i]
//
// i⁺ is the next token that the policy wrote; after the last one V is the sample's `bootstrap`.

// Added to the variance inside the root of σ.
const EPSILON = 1e-8;

// λ of a response of so many tokens.
export function lamOf({ lam, lam_alpha = null }, tokens) {
  if (lam_alpha === null) return lam;
  return Math.max(1 - 1 / (lam_alpha * Math.max(tokens, 1)), 0);
}

// The numbers of one sample in a column of the step.
export const cutter = (offsets, row) => (column) => column.subarray(offsets[row], offsets[row + 1]);

// δ of a step, 0 where the policy did not write. λ has no part in it.
export function deltasOf({ offsets, columns, bootstrap = [] }, gamma) {
  const { mask, token_level_rewards: rewards, values } = columns;
  const deltas = new Float64Array(offsets.at(-1));
  for (let row = 0; row + 1 < offsets.length; row++) {
    let after = bootstrap[row] ?? 0; // V
    for (let i = offsets[row + 1] - 1; i >= offsets[row]; i--) {
      if (!mask[i]) continue;
      deltas[i] = rewards[i] + gamma * after - values[i];
      after = values[i];
    }
  }
  return deltas;
}

// γλ of the actor's advantage and of the critic's target, for a response of so many tokens.
export function decaysOf(settings, tokens) {
  const { gamma, lam_critic = null } = settings;
  const actor = gamma * lamOf(settings, tokens);
  return { actor, critic: lam_critic === null ? actor : gamma * lam_critic };
}

// A of one sample into `out`: δ, and every later δ in part.
export function addUp(mask, deltas, decay, out) {
  let credit = 0;
  for (let i = mask.length - 1; i >= 0; i--) {
    if (!mask[i]) continue;
    credit = deltas[i] + decay * credit;
    out[i] = credit;
  }
}

// R of one sample, in which every later δ is left in part.
export function returnsOf({ mask, deltas, values }, decay) {
  const out = new Float64Array(mask.length);
  addUp(mask, deltas, decay, out); // R − V
  for (let i = 0; i < mask.length; i++) if (mask[i]) out[i] += values[i];
  return out;
}

// How many tokens of each sample the policy wrote.
export function writtenOf({ offsets, columns: { mask } }) {
  const out = [];
  for (let row = 0; row + 1 < offsets.length; row++) {
    let count = 0;
    for (let i = offsets[row]; i < offsets[row + 1]; i++) count += mask[i];
    out.push(count);
  }
  return out;
}

// {mean, std} of the numbers that the mask keeps: variance over n − 1.
export function momentsOf(numbers, mask) {
  let count = 0;
  let total = 0;
  for (let i = 0; i < numbers.length; i++) {
    if (!mask[i]) continue;
    count++;
    total += numbers[i];
  }
  const mean = total / Math.max(count, 1);
  let squares = 0;
  for (let i = 0; i < numbers.length; i++) {
    if (mask[i]) squares += (numbers[i] - mean) ** 2;
  }
  return { mean, std: Math.sqrt(squares / Math.max(count - 1, 1) + EPSILON) };
}

// μ and σ of a what-if: those of the batch, moved as the recorded samples moved. `batch` is null
// where the run did not whiten.
export function scaledMoments(now, recorded, batch) {
  if (batch === null) return now;
  return {
    mean: batch.mean + (now.mean - recorded.mean),
    std: (batch.std * now.std) / recorded.std,
  };
}

export function whitenedOf(advantages, mask, { mean, std }) {
  const out = new Float64Array(advantages.length);
  for (let i = 0; i < out.length; i++) if (mask[i]) out[i] = (advantages[i] - mean) / std;
  return out;
}

const MOST_WEIGHTS = 64;
const LEAST_WEIGHT = 0.005; // a thinner ribbon is not drawn

// How much of the δ k tokens ahead an advantage holds, for k = 0, 1, …
export function weightsOf(decay, tokens) {
  const out = [];
  for (let k = 0; k < Math.min(tokens, MOST_WEIGHTS); k++) {
    const weight = decay ** k;
    if (k && weight < LEAST_WEIGHT) break;
    out.push(weight);
  }
  return out;
}
