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
  "whatif.mark": "what if",
  "whatif.line": "What if:",
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
  "whatif.group": "Compared with its group",
  "whatif.group.picture": "{n} answers on the axis of their outcomes; a click opens one",
  "whatif.dot": "answer {position}: score {score}",
  "whatif.mean": "mean {x}",
  "whatif.group.same":
    "{n} answers to the same prompt, each dot one outcome o (the sum of its rewards): mean {mean}, σ {std}.",
  "whatif.group.all":
    "{n} recorded answers of the step, each dot one outcome o (the sum of its rewards): mean {mean}, σ {std}. There is no group and no critic.",
  "whatif.group.alone":
    "The only recorded answer to its prompt: there is nothing to compare it with. A = {a}.",
  "whatif.group.less": "A = o − b = {o} − {b} = {a}.",
  "whatif.group.over": "A = (o − b)/σ = ({o} − {b})/{s} = {a}.",
  "whatif.group.formula": "{formula}; here o = {o} and A = {a}.",
  "whatif.group.every": "Every token of the answer gets this number.",
  "whatif.kid.group":
    "The writer answered this question {n} times and got {mean} points on average.",
  "whatif.kid.all": "The writer gave {n} answers and got {mean} points on average.",
  "whatif.kid.more": "This answer got {x}: more than average, so its words get credit.",
  "whatif.kid.less": "This answer got {x}: less than average, so its words get blame.",
  "whatif.kid.same":
    "This answer got {x}: as much as the average, so its words get neither credit nor blame.",
};
