// The chosen token, term by term.

import { $, el, groupOf, hex, num, plain, sub, visible } from "./tools.js";
import { state, store, texts } from "./state.js";
import { source } from "./source.js";
import { flipped, labelOf, settings, viewOf, wantedOf, whatIf } from "./whatif.js";
import { shownToken } from "./choice.js";

const MOST_KEPT = 500;
const kept = new Map();

// Answers by key; a failure is an answer of null.
async function remember(key, make) {
  if (!kept.has(key)) {
    if (kept.size > MOST_KEPT) kept.clear();
    kept.set(key, await make().catch(() => null));
  }
  return kept.get(key);
}

const simple = (text) => (state.kid ? plain(text, texts().almost) : text);
const exact = (x) => (typeof x === "string" ? x : simple(num(x, { digits: 5 })));

// formula, = numbers, = result
function mathOf({ formula, substituted, result }, ...after) {
  const [left, ...rest] = formula.split(" = ");
  const first = rest.length ? [el("b", {}, left), ` = ${rest.join(" = ")}`] : [left];
  return el(
    "div",
    { class: "math" },
    el("div", { class: "eq" }, ...first),
    el("div", { class: "eq" }, `= ${simple(substituted)}`),
    el("div", { class: "eq" }, "= ", el("b", {}, exact(result)), ...after),
  );
}

function verdictOf({ ok }) {
  if (ok === null || ok === undefined) return null;
  return el("span", { class: ok ? "ok" : "off" }, ok ? " ✓" : " ✗");
}

function traceNode(trace, words) {
  const T = texts();
  const said = words[trace.words][state.lang];
  const meaning = said[state.kid ? "kid" : "expert"];
  const title = state.kid ? said.formula_in_words : T.names[trace.name] ?? trace.name;
  const isRecorded = trace.recorded !== null && trace.recorded !== undefined;
  const recorded = isRecorded ? `  ${T.recorded} ${exact(trace.recorded)}` : "";
  const math = state.kid
    ? el("div", { class: "math" }, T.about(trace.result), verdictOf(trace))
    : mathOf(trace, el("span", { class: "quiet" }, recorded), verdictOf(trace));
  return el(
    "div",
    { class: "trace", "data-trace": trace.name },
    el("div", { class: "label" }, el("b", {}, title), meaning ? el("div", {}, meaning) : null),
    math,
  );
}

function whatIfNode(sample, t, terms) {
  const T = texts();
  const { est, gamma, lam } = settings();
  const { columns } = viewOf(sample);
  const i = sub(t);
  const lamText = lam === null ? visible(labelOf(sample, est), 24) : `λ=${num(lam, { digits: 2 })}`;
  const numbers = [
    `A${i} = ${num(columns.advantages?.[t], { sign: true, digits: 5 })}`,
    `R${i} = ${num(columns.returns?.[t], { digits: 5 })}`,
    `Â${i} = ${num(columns.whitened?.[t], { sign: true })}`,
  ];
  return el(
    "div",
    { class: "note if", id: "if" },
    el("b", {}, `${T.ifTitle}: γ=${num(gamma, { digits: 2 })} ${lamText}`),
    el("div", { class: "math eq" }, simple(numbers.join("   "))),
    ...(terms ?? []).map((term) => mathOf(term)),
    terms ? null : el("div", { class: "quiet" }, T.ifWhere),
  );
}

function nameOf(sample, t) {
  const group = groupOf(sample, t);
  const isSplit = group.to - group.from > 1;
  const bytes = isSplit ? `  [${hex(sample.token_bytes[t])}]` : "";
  return `i = ${t}  ${visible(group.text, 24)}  (id ${sample.token_ids[t]})${bytes}`;
}

// The terms of the what-if, once its columns are there.
async function whatIfTerms(sample, t) {
  const now = settings();
  if (!now.changed || !sample.mask[t] || whatIf.pending) return null;
  const ids = [...store.loaded.keys()];
  const wanted = wantedOf(now);
  const key = JSON.stringify([state.step, wanted, ids, sample.position, t]);
  const ask = () => source.whatIfTerms(state.step, ids, wanted, sample.position, t);
  return remember(key, ask);
}

let traceTurn = 0;

export async function drawTraces() {
  const T = texts();
  const mine = ++traceTurn;
  const box = $("traces");
  const { sample, token } = shownToken();
  if (!sample || token === null) {
    $("token-name").textContent = "";
    box.replaceChildren(el("p", { class: "quiet" }, T.hint));
    return;
  }
  $("token-name").textContent = nameOf(sample, token);
  const key = `${sample.step}/${sample.position}/${token}`;
  const [answer, terms] = await Promise.all([
    remember(key, () => source.traces(state.step, sample, token)),
    whatIfTerms(sample, token),
  ]);
  if (mine !== traceTurn) return;
  const { columns } = viewOf(sample);
  const note = (text) => el("div", { class: "note" }, text);
  const out = [];
  const isTool = !sample.mask[token];
  if (settings().changed && !isTool) out.push(whatIfNode(sample, token, terms));
  if (flipped(columns, token)) out.push(note(T.flipped));
  if (isTool) out.push(note(T.tool));
  else if (!answer) out.push(note(T.none));
  for (const trace of answer?.traces ?? []) out.push(traceNode(trace, answer.words));
  box.replaceChildren(...out);
}
