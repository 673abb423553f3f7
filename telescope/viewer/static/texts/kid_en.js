// What English says to a child instead: no Greek letters, no symbols.

import { compareKidEn } from "./compare_kid_en.js";
import { runKidEn } from "./run_kid_en.js";
import { tokenKidEn } from "./token_kid_en.js";
import { tourKidEn } from "./tour_kid_en.js";
import { whatifKidEn } from "./whatif_kid_en.js";

export const kidEn = {
  ...tourKidEn,
  ...runKidEn,
  ...tokenKidEn,
  ...whatifKidEn,
  ...compareKidEn,
};
