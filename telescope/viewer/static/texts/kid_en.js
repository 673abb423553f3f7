// What English says to a child instead: no Greek letters, no symbols.

import { tokenKidEn } from "./token_kid_en.js";

export const kidEn = { ...tokenKidEn };
