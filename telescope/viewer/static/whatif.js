// The what-if: the same rollout with another γ, λ or estimator. Python computes it; the page asks,
// and shows the recorded columns until the answer is there.

import { state, store } from "./state.js";
import { source } from "./source.js";

const PAUSE = 120; // ms without a change before the server is asked

const nearest = (choices, x) =>
  choices.reduce((best, c) => (Math.abs(c - x) < Math.abs(best - x) ? c : best));

export const offerOf = (name) => store.estimators.find((offer) => offer.name === name) ?? null;
export const labelOf = (sample, name) => offerOf(name)?.label ?? sample.settings.label;
const hasLam = (offer) => offer !== null && offer.lam !== null;
export const usesLam = (name) => hasLam(offerOf(name));
export const firstWithLam = () => store.estimators.find(hasLam)?.name ?? null;

// The settings that the columns are shown with. `lam` is null where the estimator has none.
export function settings() {
  const sample = store.loaded.values().next().value;
  const recorded = sample?.settings ?? { estimator: null, gamma: 1, lam: null };
  const grid = source.grid(state.step);
  const pick = (choices, asked, own) => {
    if (asked === null || !source.canTry(state.step)) return own;
    return grid ? nearest(grid[choices], asked) : asked;
  };
  const gamma = pick("gammas", state.gamma, recorded.gamma);
  let est = recorded.estimator;
  if (source.canTry(state.step)) {
    if (offerOf(state.est)) est = state.est;
    else if (!offerOf(est) && gamma !== recorded.gamma) est = firstWithLam();
  }
  const ownLam = recorded.lam ?? offerOf(est)?.lam ?? null;
  const lam = usesLam(est) ? pick("lams", state.lam, ownLam) : null;
  const sameLam = lam === null || lam === ownLam;
  const changed = est !== recorded.estimator || gamma !== recorded.gamma || !sameLam;
  return { est, gamma, lam, changed, sameLam };
}

// What to ask Python for: λ only where it is not the estimator's own.
export function wantedOf({ est, gamma, lam, sameLam }) {
  return { est, gamma, lam: sameLam ? null : lam };
}

// An address that repeats what was recorded says nothing.
export function forgetUnchanged() {
  if (!settings().changed) forgetWhatIf();
}

export function forgetWhatIf() {
  state.est = null;
  state.gamma = null;
  state.lam = null;
}

export const viewOf = (sample) => store.view.get(sample.position) ?? sample;
export const flipped = (columns, t) => columns.advantages?.[t] * columns.whitened?.[t] < 0;

function apply(answers) {
  store.view = new Map();
  for (const { position, columns, weights } of answers) {
    const sample = store.loaded.get(position);
    if (sample) {
      store.view.set(position, { columns: { ...sample.columns, ...columns }, weights });
    }
  }
}

let viewKey = "";
let askedKey = "";
let timer = 0;
export const whatIf = { pending: false, error: null };

// Brings store.view up to date with the settings and the loaded samples. Where the server has to
// be asked, that happens after a pause, and `done` is called with the answer in place.
export function refreshView(done) {
  const now = settings();
  const ids = [...store.loaded.keys()];
  const wanted = wantedOf(now);
  const key = now.changed ? JSON.stringify([state.step, wanted, ids]) : "";
  if (key === viewKey || (key && key === askedKey)) return;
  clearTimeout(timer);
  askedKey = "";
  whatIf.pending = false;
  whatIf.error = null;
  if (!now.changed || !source.live) {
    apply(now.changed ? source.whatIf(state.step, ids, wanted) : []);
    viewKey = key;
    return;
  }
  askedKey = key;
  whatIf.pending = true;
  const step = state.step;
  timer = setTimeout(async () => {
    let answers = [];
    let error = null;
    try {
      answers = await source.whatIf(step, ids, wanted);
    } catch (trouble) {
      error = trouble.message;
    }
    if (key !== askedKey) return; // another setting was chosen meanwhile
    askedKey = "";
    whatIf.pending = false;
    whatIf.error = error;
    apply(answers);
    viewKey = key;
    done();
  }, PAUSE);
}
