// English. Keys: panel.word; {name} is a place for a value.

import { compareEn } from "./compare_en.js";
import { runEn } from "./run_en.js";
import { samplesEn } from "./samples_en.js";
import { tokenEn } from "./token_en.js";
import { tourEn } from "./tour_en.js";
import { whatifEn } from "./whatif_en.js";

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
  ...runEn,
  ...samplesEn,
  ...tokenEn,
  ...compareEn,
  ...tourEn,
  ...whatifEn,
};
