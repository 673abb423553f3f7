// English for a child: the tour.

export const tourKidEn = {
  "tour.score": "{score} points",
  "tour.scoreCut": "{score} points, cut off",
  "tour.whole": "The picture shows {shown} of {all} words and signs. Read the whole answer",
  "tour.toTokens": "look at this answer piece by piece",
  "tour.group": "answers to the same question, by their points",
  "tour.b": "compared with",
  "tour.means.V": "how many points the forecaster thinks are still to come, before a word",
  "tour.means.r": "points that the word itself gets",
  "tour.means.d": "how much better or worse it went than guessed",
  "tour.means.lam": "how much of a later surprise comes back to earlier words",
  "tour.means.A": "a word's own surprise and the later ones that come back",
  "tour.means.R": "what the forecaster should have guessed",
  "tour.means.W": "credit compared with the average of all words",
  "tour.means.rho": "how much more or less often the writer now writes it",
  "tour.means.o": "all points of the answer",
  "tour.means.b": "what the total is compared with",
  "tour.means.sigma": "how far apart the answers usually are",
  "tour.means.gA": "how much better than the others",
  "tour.means.share": "how the words share it",
};
