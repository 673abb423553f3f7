// English: what if, and the picture of a group.

export const whatifEn = {
  "whatif.title": "What if",
  "whatif.reset": "as recorded",
  "whatif.estimator": "estimator",
  "whatif.gamma": "γ",
  "whatif.lam": "λ",
  "whatif.by_length": "λ by length, α = {alpha}: another for every answer",
  "whatif.whiten": "whiten",
  "whatif.loss": "policy loss",
  "whatif.clipped": "clipped {before} → {now}",
  "whatif.recorded":
    "All numbers are as recorded. Another estimator, γ or λ shows what the same rollout would " +
    "have given; the recorded numbers stay in grey.",
  "whatif.pending": "computing …",
  "whatif.changed": "The same rollout and the same V; {samples} are computed anew.",
  "whatif.samples": "all {n} recorded samples of the step",
  "whatif.samples.of": "all {n} recorded samples of {every}",
  "whatif.samples.all": "all {n} samples of the batch",
  "whatif.samples.file": "the {n} samples of the step in this file",
  "whatif.whitening.off": "Nothing is whitened: Â = A.",
  "whatif.whitening.scaled":
    "They are whitened together, scaled so that the recorded setting gives the recorded Â: " +
    "μ = {mean}, σ = {std}.",
  "whatif.whitening.plain":
    "They are whitened together: μ = {mean}, σ = {std}. The run did not whiten.",
  "whatif.groups": "An answer is compared with the recorded answers to the same prompt.",
  "whatif.lam_critic": "The critic's targets have a λ of their own: {lam}.",
  "whatif.stop": ".",
  "whatif.refused": "{n} cannot be tried on this record",
};
