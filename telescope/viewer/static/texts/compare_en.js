// English: the words of compare.

export const compareEn = {
  "compare.parts": "what to compare",
  "compare.prompt": "One prompt",
  "compare.runs": "Two runs or settings",
  "compare.distributions": "Distributions",
  "compare.calibration": "Critic",
  "compare.choose": "prompt",
  "compare.several": "recorded at several steps",
  "compare.once": "only at this step",
  "compare.times": "{n} steps · ",
  "compare.greedy": "greedy, after step {step}",
  "compare.greedy.why":
    "the evaluation's greedy answer to a held-out prompt (ledger.prompts); no update has seen it",
  "compare.at": "step {step} · answer {position}",
  "compare.v0": "V₀",
  "compare.prompt.title": "One prompt through training",
  "compare.prompt.count":
    "{shown} of {n} recorded answers to this prompt, the earliest first. One scale of colours for the whole run.",
  "compare.runs.title": "Side by side",
  "compare.other": "compare with",
  "compare.steps_differ":
    "Step {a} is compared with step {b}, the nearest with this prompt: training lies between.",
  "compare.setting": "this run with another setting",
  "compare.setting.same": "Both are as recorded: choose another estimator, γ or λ above.",
  "compare.setting.differs": "The same answer; the first token whose number differs is i = {i}.",
  "compare.shared":
    "● {n} of {every} answers of this step have a prompt that the other run answered at its step {step}.",
  "compare.same": "The two answers are the same.",
  "compare.differs": "The first difference is at token i = {i}.",
  "compare.gap": "Score of the second less that of the first: {gap}.",
  "compare.never": "This run recorded no answer to this prompt.",
  "compare.column": "number",
  "compare.log": "logarithmic counts",
  "compare.distributions.title": "Distribution at step {step}",
  "compare.histogram": "histogram of {name}; a bin lists its tokens",
  "compare.spread": "{n} written tokens: {name} from {low} to {high}, mean {mean}, σ {std}.",
  "compare.outside":
    "Outside {low} to {high} the ratio may be clipped: {share} % of the tokens are there.",
  "compare.bin": "{low} to {high}: {n} tokens",
  "compare.cell": "V {v}, R {r}: {n} tokens",
  "compare.cell.title": "{n} tokens",
  "compare.first": "the first {n}",
  "compare.close": "close",
  "compare.vr.title": "V against R",
  "compare.vr.about":
    "Each cell counts tokens by V before the token and R, the critic's target. On the dashed line the two are equal.",
  "compare.no_numbers": "None of these numbers was recorded in this step.",
  "compare.no_rewards": "Rewards were not recorded, so V cannot be compared with what came.",
  "compare.no_critic":
    "There is no V to compare with what came: no critic, or its V were not recorded.",
  "compare.calibration.title": "Calibration of the critic at step {step}",
  "compare.calibration.about":
    "Tokens sorted by V, in bins of equal counts. A dot is the mean V and the mean observed return G of a bin; the number counts its tokens. On the dashed line V is right on average.",
  "compare.calibration.picture":
    "mean V and mean observed return of each bin; a dot lists its tokens",
  "compare.calibration.bin": "V {v}, observed {g} ({error}): {n} tokens of {answers} answers",
  "compare.few": "too few answers for an error bar",
  "compare.rests": "It rests on {n} recorded answers: {tokens} of their {written} tokens.",
  "compare.rests.of":
    "It rests on {n} of {every} answers of this step: {tokens} of their {written} tokens.",
  "compare.bars":
    "A bar is one standard error up and down, counted by answers: tokens of one answer share its ending.",
  "compare.bars.some":
    "A bar is one standard error up and down, counted by answers. Without one, for fewer than {least} answers: {without} of {bins} points.",
  "compare.bars.none":
    "There are no error bars: too few answers. Each point has the tokens of fewer than {least} answers.",
  "compare.observed": "observed return G",
  "compare.explained.part":
    "Explained variance {x}: V explains {share} % of the variance of the observed returns.",
  "compare.explained.nothing":
    "Explained variance {x}: V predicts no better than one constant number would.",
  "compare.explained.flat": "All observed returns are equal: there is no variance to explain.",
  "compare.bias.high": "On average V is {gap} too high.",
  "compare.bias.low": "On average V is {gap} too low.",
  "compare.bias.sure": "(One standard error, by answers: {error}.)",
  "compare.bias.unsure":
    "One standard error, by answers, is {error}: with these answers it may as well be none.",
  "compare.bias.none": "On average V is neither too high nor too low.",
  "compare.kid.guess": "guess",
  "compare.kid.came": "points that came",
};
