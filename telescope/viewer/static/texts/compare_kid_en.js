// For a child: compare.

export const compareKidEn = {
  "compare.prompt": "One question",
  "compare.runs": "Side by side",
  "compare.distributions": "How many words",
  "compare.calibration": "Is the forecaster right?",
  "compare.choose": "question",
  "compare.v0": "first guess",
  "compare.greedy": "after round {step}, the answer it is surest of",
  "compare.greedy.why": "a question it never practised on; nothing is learned from this answer",
  "compare.times": "{n} rounds · ",
  "compare.at": "round {step}, answer {position}",
  "compare.prompt.title": "One question, again and again",
  "compare.prompt.count":
    "{shown} of {n} answers to this question, the earliest first. The colours always mean the same.",
  "compare.setting.same": "Both are as they were: move a slider above.",
  "compare.setting.differs": "The same answer, with the credit counted in two ways.",
  "compare.differs": "From here on the two answers differ.",
  "compare.spread":
    "Each column counts words: the higher the column, the more words. All in all {n} words.",
  "compare.outside":
    "Between the two lines a word may change freely. Outside them the writer is held back.",
  "compare.vr.title": "Guess and target",
  "compare.vr.about":
    "Dark boxes hold many words. On the dashed line the guess was exactly the target.",
  "compare.no_critic": "There is no forecaster here, so there are no guesses.",
  "compare.calibration.title": "Were the guesses right?",
  "compare.calibration.about":
    "Each dot is a bag of words with about the same guess. On the dashed line the guess came true.",
  "compare.calibration.bin": "guess {v}, came {g}: {n} words of {answers} answers",
  "compare.rests": "This counts {tokens} words of {n} answers.",
  "compare.rests.of": "This counts {tokens} words of {n} answers. {every} answers were written.",
  "compare.bars": "A short bar means: we are quite sure of that dot.",
  "compare.bars.some": "A short bar means: we are quite sure of that dot. Few answers: no bar.",
  "compare.bars.none": "There are too few answers to be sure of the dots.",
  "compare.explained.part":
    "The forecaster can tell good answers from bad ones a little or a lot: {share} of 100.",
  "compare.explained.nothing": "The forecaster does not know yet which answers will be good.",
  "compare.explained.flat": "All answers got the same points, so there was nothing to tell apart.",
  "compare.bias.high": "The guesses are too high: by {gap} on average.",
  "compare.bias.low": "The guesses are too low: by {gap} on average.",
  "compare.bias.none": "On average the guesses are neither too high nor too low.",
};
