// English. Keys: panel.word; {name} is a place for a value.

export const en = {
  "page.loading": "loading …",
  "page.error": "This could not be loaded: {error}",
  "page.retry": "try again",
  "page.absent": "This file does not hold that; telescope view shows it.",
  "page.lang": "language",
  "page.theme": "colours",
  "page.theme.auto": "as the system",
  "page.theme.light": "light",
  "page.theme.dark": "dark",
  "page.kid": "Age 12",
  "page.views": "parts of the page",
  "view.runs": "Runs",
  "view.run": "Training",
  "view.samples": "Answers",
  "view.compare": "Compare",
  "view.tour": "Tour",
};
