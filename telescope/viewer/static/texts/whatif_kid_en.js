// For a child: what if, and the picture of a group.

export const whatifKidEn = {
  "whatif.title": "What if we counted differently?",
  "whatif.reset": "as it was",
  "whatif.gamma": "how much later marks count",
  "whatif.lam": "how far surprises reach back",
  "whatif.whiten": "compare with the other answers",
  "whatif.recorded":
    "These are the numbers as they were. Move a slider and see how the credit changes; the old " +
    "numbers stay in grey.",
  "whatif.changed":
    "The same answers and the same guesses; the credit is counted again for {samples}.",
  "whatif.samples": "all {n} answers that were kept",
  "whatif.samples.of": "all {n} answers that were kept out of {every}",
  "whatif.samples.all": "all {n} answers",
  "whatif.samples.file": "the {n} answers in this file",
  "whatif.whitening.off": "The credit is not compared with other answers.",
  "whatif.whitening.scaled": "Then the credit is compared with that of all these answers.",
  "whatif.whitening.plain": "Then the credit is compared with that of all these answers.",
  "whatif.groups": "Each answer is compared with the other answers to the same question.",
  "whatif.group": "Answers to the same question",
  "whatif.group.picture": "{n} answers, the better ones further right; a click opens one",
  "whatif.mean": "average {x}",
};
