// The tour opens by itself the first time somebody sees the page, and never again.

import { isLive } from "../core/source.js";
import { go } from "../core/state.js";

const SEEN = "telescope.tour";

function isFirst() {
  try {
    const seen = localStorage.getItem(SEEN) !== null;
    localStorage.setItem(SEEN, "1");
    return !seen;
  } catch {
    return false; // no storage: it would open every time
  }
}

// Not in a report, which was opened to be read, and not where the address names something.
export function openTourOnce() {
  if (isLive && location.hash.length < 2 && isFirst()) go({ view: "tour" }, { replace: true });
}
