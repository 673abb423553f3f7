// What the page shows. Every signal here is part of the address, so a link holds the whole view.

import { batch, signal } from "../vendor/preact.js";

const VIEWS = ["runs", "run", "samples", "compare", "tour"];
export const QUANTITIES = [
  "whitened",
  "advantages",
  "deltas",
  "kl",
  "values",
  "token_level_rewards",
  "ratio",
  "entropy",
];
export const LANGS = ["zh", "en"];
export const THEMES = ["auto", "light", "dark"];

// ---- how a field reads its text in the address; null: not a value of this field ----

const number = (text) => (text !== "" && Number.isFinite(Number(text)) ? Number(text) : null);
const count = (text) => (/^\d{1,9}$/.test(text) ? Number(text) : null);
const fraction = (text) => {
  const x = number(text);
  return x === null ? null : Math.max(0, Math.min(1, x));
};
const flag = (text) => (text === "1" ? true : null);
const text = (given) => (given.length <= 300 ? given : null);
const oneOf = (choices) => (given) => (choices.includes(given) ? given : null);
const names = (given) => (given ? given.split(",").slice(0, 32) : null);

// name -> [value when the address says nothing, reader]
const FIELDS = {
  view: [null, oneOf(VIEWS)], // null: the list of runs, or the only run
  run: [null, text], // id of the run; null: the only one, or the first
  with: [null, names], // ids of runs laid over it
  step: [null, count],
  sample: [null, count],
  token: [null, count],
  colour: ["whitened", oneOf(QUANTITIES)],
  // What if: null means as recorded.
  est: [null, text],
  gamma: [null, fraction],
  lam: [null, fraction],
  own: [null, text], // the estimator's other settings: "n:4"
  whiten: [null, oneOf(["0", "1"])],
  loss: [null, text],
  // The table of samples.
  sort: ["position", text],
  down: [null, flag], // largest first
  filter: [null, names],
  low: [null, number], // of the score
  high: [null, number],
  group: [null, count],
  search: ["", text],
  // Charts.
  charts: [null, names],
  smooth: [0, fraction],
  log: [null, flag],
  logcounts: [null, flag], // of a distribution
  zoom: [null, (given) => (/^\d{1,9}-\d{1,9}$/.test(given) ? given : null)], // steps from-to
  // Answers of an evaluation.
  evaluated: [null, count], // the step; null: the last
  set: ["", text],
  drawn: ["greedy", text], // or sampled, pass@8
  is: ["all", oneOf(["all", "right", "wrong"])],
  // The list of runs.
  by: ["name", text], // "-updated": largest first
  // Compare.
  compare: ["prompt", oneOf(["prompt", "runs", "distributions", "calibration"])],
  prompt: [null, (given) => (/^[0-9a-f]{12}$/.test(given) ? given : null)],
  other: [null, text], // the second run
  column: ["advantages", oneOf(QUANTITIES)],
  bin: [null, text], // of a distribution: its index, or "column,row"
  // Anywhere.
  follow: [null, flag],
  stop: [0, count], // of the tour
  example: [null, flag], // the tour of the built-in example
  kid: [null, flag],
  lang: [null, oneOf(LANGS)],
  theme: ["auto", oneOf(THEMES)],
};

export const state = Object.fromEntries(
  Object.entries(FIELDS).map(([name, [usual]]) => [name, signal(usual)]),
);

// ---- the address ----

export function addressOf(changes = {}) {
  const out = new URLSearchParams();
  for (const [name, [usual]] of Object.entries(FIELDS)) {
    const value = name in changes ? changes[name] : state[name].peek();
    if (value === null || value === usual || value === false) continue;
    out.set(name, value === true ? "1" : String(value));
  }
  return `#${out}`;
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  batch(() => {
    for (const [name, [usual, read]] of Object.entries(FIELDS)) {
      const found = given.get(name);
      state[name].value = (found === null ? null : read(found)) ?? usual;
    }
  });
}

// Changes some fields at once. Each call is one step of the back button; `replace` makes none, for
// drags and for what the page chooses by itself.
export function go(changes, { replace = false } = {}) {
  batch(() => {
    for (const [name, value] of Object.entries(changes)) state[name].value = value;
  });
  const address = addressOf();
  if (address === location.hash || (address === "#" && !location.hash)) return;
  if (replace) history.replaceState(null, "", address);
  else history.pushState(null, "", address);
}

// A list as the address has it: an empty one is nothing.
export const listed = (names) => (names.length ? names : null);
export const without = (names, name) => (names ?? []).filter((each) => each !== name);

export function listenToAddress() {
  readAddress();
  window.addEventListener("popstate", readAddress);
}
