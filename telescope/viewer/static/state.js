// What the page shows, and what it has loaded. The address holds the first part.

import { KID, TEXT } from "./texts.js";
import { clamp, has } from "./tools.js";

export const PAGE = 12; // samples loaded at a time
export const CHIPS = 48; // chips of one sample before "more"
export const QUANTITIES = {
  whitened: "Â",
  advantages: "A",
  deltas: "δ",
  kl: "KL",
  values: "V",
  token_level_rewards: "r",
  ratio: "ρ",
};

// In the address. For est, gamma and lam null means: as recorded.
export const state = {
  step: null,
  sample: null,
  token: null,
  color: "whitened",
  est: null,
  gamma: null,
  lam: null,
  lang: null,
  kid: false,
  sort: "order",
  filter: "all",
  prompt: null,
  follow: false,
};
const USUAL = { color: "whitened", sort: "order", filter: "all" };

// Not in the address.
export const store = {
  run: { name: "", steps: [], curves: {} },
  index: [], // a row for every sample of the step
  estimators: [], // {name, label, lam} of what can be tried; lam is null where there is none
  paths: null, // V along right and wrong answers of the step
  loaded: new Map(), // position -> sample
  view: new Map(), // position -> {columns, weights} as shown now
  promptSteps: [], // the steps that recorded state.prompt
  hover: null, // {sample, token}: shown instead of what is pinned
  wanted: PAGE, // rows of the list
  expanded: new Set(), // samples shown with all their chips
  windowStart: 0, // first token of the fence picture
};

let written = "";
export const isOwnAddress = () => location.hash === written;

export function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => {
    const text = given.get(name) ?? "";
    return text !== "" && has(Number(text)) ? Number(text) : null;
  };
  const choice = (name, from, otherwise) =>
    Object.hasOwn(from, given.get(name) ?? "") ? given.get(name) : otherwise;

  for (const name of ["step", "sample", "token"]) state[name] = number(name);
  for (const name of ["gamma", "lam"]) {
    const x = number(name);
    state[name] = x === null ? null : clamp(x, 0, 1);
  }
  state.color = choice("color", QUANTITIES, USUAL.color);
  state.est = given.get("est");
  state.lang = choice("lang", TEXT, navigator.language.startsWith("zh") ? "zh" : "en");
  state.sort = choice("sort", TEXT.en.sorts, USUAL.sort);
  state.filter = choice("filter", TEXT.en.filters, USUAL.filter);
  state.kid = given.get("kid") === "1";
  state.follow = given.get("follow") === "1";
  const prompt = given.get("prompt") ?? "";
  state.prompt = /^[0-9a-f]{12}$/.test(prompt) ? prompt : null;
}

export function writeHash() {
  const out = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) {
    if (value === null || value === false || USUAL[name] === value) continue;
    out.set(name, value === true ? "1" : value);
  }
  written = "#" + out;
  history.replaceState(null, "", written);
}

// The page's own texts in the chosen language; for a child, some are other ones.
export function texts() {
  const own = TEXT[state.lang ?? "zh"];
  return state.kid ? { ...own, ...KID[state.lang] } : own;
}

// The steps at which the scrubber can stand.
export const stops = () =>
  state.prompt && store.promptSteps.length ? store.promptSteps : store.run.steps;
