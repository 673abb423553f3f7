// One page, two homes: live beside a run (telescope.viewer.server) or inlined in a report. It recomputes only what-ifs; every
// recorded number and every trace comes from Python. Text that a model wrote enters the document through textContent alone.

import { KID, TEXT } from "./texts.js";
import { colour, el, groupOf, groups, has, hex, ink, num, plain, shown, sub, svg, tone, visible } from "./tools.js";

const $ = (id) => document.getElementById(id);
const QUANTITIES = { whitened: "Â", advantages: "A", deltas: "δ", kl: "KL", values: "V", token_level_rewards: "r", ratio: "ρ" };
const ESTIMATORS = { mc: "MC", td0: "TD0", gae: "GAE" };
const RECORDED_AS = { monte_carlo: "mc", td0: "td0", gae: "gae" };
const CURVES = [
  ["reward/score_mean"],
  ["reward/kl"],
  ["actor/pg_clipfrac"],
  ["actor/entropy"],
  ["eval/sampled_accuracy", "eval/greedy_accuracy"]
];
const PAGE = 12; // samples loaded at a time
const CHIPS = 48; // chips of one sample before "more"

// ---- state: the address holds it ----

const state = { step: null, sample: null, token: null, color: "whitened", est: null, gamma: null, lam: null, lang: null, kid: false,
  sort: "order", filter: "all", prompt: null, follow: false };
let hover = null; // {sample, token}, over what is pinned
let run = { name: "", steps: [], curves: {}, right: 1 };
let index = []; // of the step, all its samples
let promptSteps = []; // those that recorded state.prompt: one prompt across training
let loaded = new Map(); // position -> sample
let wanted = PAGE;
let expanded = new Set();
let windowStart = 0;
let T = TEXT.zh;

function readHash() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => (given.has(name) && given.get(name) !== "" && has(Number(given.get(name))) ? Number(given.get(name)) : null);
  const choice = (name, from, otherwise) => (Object.hasOwn(from, given.get(name) ?? "") ? given.get(name) : otherwise);
  for (const name of ["step", "sample", "token", "gamma", "lam"]) state[name] = number(name);
  for (const name of ["gamma", "lam"])
    if (state[name] !== null) state[name] = Math.max(0, Math.min(1, state[name]));
  state.color = choice("color", QUANTITIES, "whitened");
  state.est = choice("est", ESTIMATORS, null);
  state.lang = choice("lang", TEXT, navigator.language.startsWith("zh") ? "zh" : "en");
  state.sort = choice("sort", TEXT.en.sorts, "order");
  state.filter = choice("filter", TEXT.en.filters, "all");
  state.kid = given.get("kid") === "1";
  state.follow = given.get("follow") === "1";
  state.prompt = /^[0-9a-f]{12}$/.test(given.get("prompt") ?? "") ? given.get("prompt") : null;
}
let written = "";

function writeHash() {
  const out = new URLSearchParams();
  const plain = { color: "whitened", sort: "order", filter: "all" };
  for (const [name, value] of Object.entries(state))
    if (value !== null && value !== false && plain[name] !== value) out.set(name, value === true ? "1" : value);
  written = "#" + out;
  history.replaceState(null, "", written);
}

// ---- where the data comes from ----

const inlined = $("data") ? JSON.parse($("data").textContent) : null;
async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? `HTTP ${answer.status}`);
  return answer.json();
}
const source = inlined ?
  {
    live: false,
    run: async () => inlined.run,
    index: async (step) => inlined.steps[step].samples.map((s) => ({ ...s.index_row, position: s.position })),
    samples: async (step, ids) => inlined.steps[step].samples.filter((s) => ids.includes(s.position)),
    traces: async (step, sample, t) => (sample.traces[t] ? { traces: sample.traces[t], words: inlined.words } : null),
    count: (step) => inlined.steps[step].count,
    stepsOf: async (key) => inlined.run.steps.filter((step) => inlined.steps[step].samples.some((s) => s.index_row.prompt_key === key)),
  } :
  {
    live: true,
    run: () => get("api/run"),
    index: async (step) => (await get(`api/step/${step}/samples`)).index.map((row, position) => ({ ...row, position })),
    samples: async (step, ids) => (await get(`api/step/${step}/samples?ids=${ids.join(",")}`)).samples,
    traces: async (step, sample, t) => get(`api/step/${step}/sample/${sample.position}?t=${t}`),
    count: () => index.length,
    stepsOf: async (key) => (await get(`api/prompt/${key}`)).steps,
  };

// ---- the what-if: MC is λ=1 and TD(0) is λ=0 of the same lines ----

function settings() {
  const recorded = [...loaded.values()][0]?.settings ?? { gamma: 1, lam: 0.95, estimator: "gae" };
  const est = state.est ?? RECORDED_AS[recorded.estimator] ?? null; // null: one that asks no critic
  const fixed = (name, lam) => ({ mc: 1, td0: 0 })[name] ?? lam;
  const was = { gamma: recorded.gamma, lam: fixed(RECORDED_AS[recorded.estimator], recorded.lam) };
  const now = { gamma: state.gamma ?? recorded.gamma, lam: fixed(est, state.lam ?? recorded.lam) };
  return { est, ...now, changed: now.gamma !== was.gamma || now.lam !== was.lam };
}

function credit(sample, gamma, lam) { // tokens with mask 0 take no time step
  const r = sample.columns.token_level_rewards,
    v = sample.columns.values,
    n = r?.length ?? 0;
  const out = { deltas: new Array(n).fill(0), advantages: new Array(n).fill(0), returns: new Array(n).fill(0) };
  let valueAfter = sample.bootstrap ?? 0,
    advantageAfter = 0;
  for (let t = n - 1; t >= 0; t--) {
    if (!sample.mask[t]) continue;
    out.deltas[t] = r[t] + gamma * valueAfter - v[t];
    out.advantages[t] = out.deltas[t] + gamma * lam * advantageAfter;
    out.returns[t] = out.advantages[t] + v[t];
    [valueAfter, advantageAfter] = [v[t], out.advantages[t]];
  }
  return out;
}
let view = new Map(); // position -> columns as shown now
function recompute() {
  const { gamma, lam, changed } = settings();
  view = new Map([...loaded].map(([position, sample]) => [position, changed && sample.columns.values && sample.columns
    .token_level_rewards ?
    { ...sample.columns, ...credit(sample, gamma, lam) } : sample.columns
  ]));
  if (!changed) return;
  const all = [...loaded].flatMap(([position, sample]) => view.get(position).advantages?.filter((_, t) => sample.mask[t]) ?? []);
  const mean = all.reduce((sum, x) => sum + x, 0) / Math.max(all.length, 1);
  const std = Math.sqrt(all.reduce((sum, x) => sum + (x - mean) ** 2, 0) / Math.max(all.length - 1, 1) + 1e-8);
  for (const [position, sample] of loaded) {
    const columns = view.get(position);
    columns.whitened = columns.advantages?.map((x, t) => (!sample.mask[t] ? 0 : sample.settings.whiten ? (x - mean) / std : x));
  }
}
const flipped = (columns, t) => columns.advantages?.[t] * columns.whitened?.[t] < 0;

function scale() { // what a full colour stands for, over the loaded samples
  let top = 0;
  for (const [position, sample] of loaded) {
    (view.get(position)[state.color] ?? []).forEach((x, t) => { if (sample.mask[t] && has(x)) top = Math.max(top, Math.abs(state.color ===
        "ratio" ? x - 1 : x)); });
  }
  return top || 1;
}
const level = (x, top) => (has(x) ? (state.color === "ratio" ? x - 1 : x) / top : null);

// ---- the list ----

function chosenRows() {
  const keep = { all: () => true, right: (row) => row.right, wrong: (row) => !row.right, clipped: (row) => row.clipped, flipped: (row) =>
      row.flipped } [state.filter];
  const key = { order: (row) => row.position, score: (row) => -(row.score ?? -Infinity), length: (row) => -row.length, surprise: (row) =>
      -row.max_abs_a } [state.sort];
  const rows = index.filter((row) => keep(row) && (!state.prompt || row.prompt_key === state.prompt));
  rows.sort((a, b) => key(a) - key(b) || a.position - b.position);
  const byPrompt = new Map(); // the prompt of the first row first, its samples side by side
  for (const row of rows) byPrompt.set(row.prompt_key, [...(byPrompt.get(row.prompt_key) ?? []), row]);
  return [...byPrompt.values()].flat();
}

function badges(sample, columns, t) {
  return (sample.mask[t] ? "" : "🔧") + (sample.clipped?.includes(t) ? "✂" : "") + (flipped(columns, t) ? "⇅" : "");
}

function chip(sample, columns, t, top, label) {
  const tool = !sample.mask[t],
    x = columns[state.color]?.[t],
    mark = badges(sample, columns, t);
  const node = el("button", { type: "button", class: "chip" + (tool ? " tool" : ""), tabindex: "-1", "data-sample": sample
    .position, "data-token": t }, label);
  if (mark) node.append(el("sup", {}, mark));
  node.title = `${t}  ${QUANTITIES[state.color]} ${tool ? "–" : shown(state.color, x)}`;
  if (!tool)[node.style.backgroundColor, node.style.color] = [colour(level(x, top)), ink(level(x, top))];
  return node;
}

function drawList() {
  const rows = chosenRows(),
    here = rows.slice(0, wanted).filter((row) => loaded.has(row.position)),
    top = scale(),
    list = $("list");
  const keep = list.scrollTop;
  list.replaceChildren();
  let group = null,
    last = null;
  for (const row of here) {
    const sample = loaded.get(row.position),
      columns = view.get(row.position);
    if (row.prompt_key !== last) {
      group = el("div", { class: "rows" });
      list.append(el("div", { class: here.filter((other) => other.prompt_key === row.prompt_key).length > 1 ? "group many" : "group" },
        el("div", { class: "prompt" }, visible(sample.prompt, 200)), group));
      last = row.prompt_key;
    }
    const open = expanded.has(row.position) || (row.position === state.sample && state.token >= CHIPS),
      chips = el("span", { class: "chips" });
    for (const { from, to, text } of groups(sample)) {
      if (from >= CHIPS && !open) break;
      if (to === from + 1) chips.append(chip(sample, columns, from, top, visible(text, 24) || "∅"));
      else {
        const cells = el("span", {});
        for (let t = from; t < to; t++) cells.append(chip(sample, columns, t, top, hex(sample.token_bytes[t])));
        chips.append(el("span", { class: "split" }, el("span", {}, visible(text, 24)), cells));
      }
    }
    const drawn = open ? sample.token_bytes.length : Math.min(CHIPS, sample.token_bytes.length);
    if (sample.token_bytes.length > drawn) chips.append(el("button", { type: "button", class: "chip", "data-expand": row.position },
      `+${sample.length - drawn}`));
    else if (sample.length > drawn) chips.append(el("span", { class: "quiet" }, T.cut(drawn, sample.length)));
    const head = el("span", { class: "head" }, `#${row.position} ${row.right ? "✓" : "✗"} ${num(row.score, { digits: 2 })}`);
    group.append(el("div", { class: `row ${row.right ? "right" : "wrong"}`, "data-row": row.position }, head, chips));
  }
  if (rows.length > here.length) list.append(el("button", { type: "button", id: "more" }, T.more(Math.min(PAGE, rows.length - here
    .length))));
  if (!rows.length) list.append(el("p", { class: "quiet" }, run.steps.length ? T.empty : T.nothing));
  list.scrollTop = keep;
  $("samples-count").textContent = run.steps.length ? T.loaded(here.length, source.count(state.step)) : "";
  markChosen();
}

function markChosen() {
  const { sample, token } = shownToken();
  for (const node of document.querySelectorAll(".chip.pinned, .chip.hover, .row.chosen")) { node.classList.remove("pinned", "hover",
      "chosen"); if (node.matches(".chip")) node.tabIndex = -1; }
  document.querySelector(`[data-row="${sample?.position}"]`)?.classList.add("chosen");
  const at = (position, t) => document.querySelector(`.chip[data-sample="${position}"][data-token="${t}"]`);
  if (hover) at(hover.sample, hover.token)?.classList.add("hover");
  const pin = at(state.sample, state.token) ?? document.querySelector(".chip");
  if (pin) pin.tabIndex = 0;
  if (state.token !== null) at(state.sample, state.token)?.classList.add("pinned");
  return { sample, token };
}

function shownToken() {
  const position = hover?.sample ?? state.sample ?? chosenRows()[0]?.position;
  const sample = loaded.get(position),
    token = hover ? hover.token : state.token;
  return { sample, token: sample && has(token) && token >= 0 && token < sample.token_bytes.length ? token : null };
}

// ---- the fence: V on the posts, everything that belongs to a token in its gap ----

function drawFence() {
  const { sample, token } = shownToken(), picture = $("picture");
  picture.replaceChildren();
  $("about").textContent = "";
  if (!sample) return;
  const columns = view.get(sample.position),
    { est, gamma, lam } = settings(),
    count = sample.token_bytes.length,
    top = scale();
  $("about").textContent =
    `#${sample.position} · ${T.prompt} ${visible(sample.prompt, 40)} · ${T.score} ${num(sample.score, { digits: 2 })} · ` +
    `${est === "gae" ? `λ ${num(lam, { digits: 2 })}` : `${T.estimator} ${ESTIMATORS[est] ?? visible(sample.settings.estimator, 24)}`} ` +
    `γ ${num(gamma, { digits: 2 })} β ${num(sample.settings.kl_coef)}`;
  const W = Math.max(560, picture.clientWidth || 800),
    left = 142,
    right = 46,
    fits = Math.max(3, Math.floor((W - left - right) / 74)),
    shownCount = Math.min(count, fits);
  if (token !== null && (token < windowStart || token >= windowStart + shownCount)) windowStart = token - Math.floor(shownCount / 3);
  windowStart = Math.max(0, Math.min(windowStart, count - shownCount));
  const gap = Math.min(112, (W - left - right) / Math.max(shownCount, 1)),
    from = windowStart,
    to = from + shownCount;
  const Y = { state: 15, box: 24, boxH: 36, plot: 82, plotH: 118, r: 244, d: 284, fan: 299, A: 374, W: 405, H: 422 };
  const post = (t) => left + (t - from) * gap,
    mid = (t) => post(t) + gap / 2;
  const r = columns.token_level_rewards ?? [],
    v = columns.values ?? [],
    d = columns.deltas ?? [],
    a = columns.advantages ?? [],
    R = columns.returns ?? [];
  const acts = sample.mask.map((m, t) => (m ? t : -1)).filter((t) => t >= 0),
    lastAct = acts.at(-1) ?? -1;
  const after = (t) => acts.find((n) => n > t); // next position with mask 1
  const valueAfter = (t) => (after(t) === undefined ? sample.bootstrap ?? 0 : v[after(t)]);
  const range = [];
  for (let t = from; t < to; t++)
    if (sample.mask[t]) range.push(v[t], R[t], r[t] + gamma * valueAfter(t));
  const seen = range.filter(has),
    endValue = sample.bootstrap ?? 0,
    ends = to === sample.length;
  let [low, high] = seen.length ? [Math.min(...seen), Math.max(...seen)] : [0, 1];
  const far = ends && (endValue < low - 2 * (high - low) || endValue > high + 2 * (high -
  low)); // the end would squash the rest: break the axis there
  if (ends && !far)[low, high] = [Math.min(low, endValue), Math.max(high, endValue)];
  if (high - low < 1e-6)[low, high] = [low - 0.5, high + 0.5];
  const floor = Y.plot + Y.plotH - (far ? 34 : 0),
    y = (x) => floor - ((x - low) / (high - low)) * (floor - Y.plot);
  const root = svg("svg", { viewBox: `0 0 ${W} ${Y.H}`, height: Y.H });
  const add = (tag, attributes, ...children) => { const node = svg(tag, attributes, ...children);
    root.append(node); return node; };
  const text = (x, yy, content, attributes = {}) => add("text", { x, y: yy, class: "mid", ...attributes }, content);
  const caption = (yy, name, small, fill) => { text(10, yy, name, { class: "ui", "font-weight": 650, ...(fill && { style: undefined,
          fill }) }).style.fill = fill ?? "";
    text(10, yy + 13, small, { class: "ui" }).style.cssText = "font-size:10.5px;fill:var(--quiet)"; };

  add("rect", { x: 4, y: Y.plot - 20, width: W - 8, height: Y.plotH + 40, rx: 8, fill: "#eaf5f7" }); // the band of the states
  add("rect", { x: 4, y: Y.plot + Y.plotH + 24, width: W - 8, height: Y.H - Y.plot - Y.plotH - 25, rx: 8,
  fill: "#faf7f2" }); // the band of the tokens
  if (token !== null) add("rect", { x: post(token), y: Y.box - 3, width: gap, height: Y.H - Y.box + 1,
  fill: "#1d4ed8", "fill-opacity": 0.07, stroke: "#1d4ed8", "stroke-opacity": 0.35 });
  caption(Y.state, T.state, "", "var(--state)");
  caption(Y.box + 16, T.tokenRow, T.tokenSub);
  caption(Y.plot + 36, T.V, T.VSub, "var(--state)");
  text(10, Y.plot + 72, T.R, { class: "ui" }).style.cssText = "font-size:10.5px;fill:var(--quiet)";
  text(10, Y.plot + 87, "↕ δ", { class: "ui" }).style.cssText = "font-size:10.5px;fill:var(--quiet)";
  caption(Y.r - 4, T.r, T.rSub);
  caption(Y.d - 4, T.d, T.dSub);
  caption(Y.fan + 40, T.fan, T.fanSub);
  caption(Y.A - 4, T.A, T.ASub);
  caption(Y.W - 2, T.W, T.WSub);
  for (const node of root.querySelectorAll("text.ui")) node.setAttribute("text-anchor", "start");

  for (let t = from; t <= to; t++) { // posts
    const x = post(t),
      end = t === count && count === sample.length,
      real = end || t === to || sample.mask[t];
    add("rect", { x: x - 2.5, y: Y.box - 4, width: 5, height: Y.plot + Y.plotH + 10 - Y.box, rx: 2.5, fill: real ? "#b9a68c" :
        "#e2dbd0" });
    add("line", { x1: x, x2: x, y1: Y.plot + Y.plotH + 24, y2: Y.H - 2, stroke: "#d9cfc0", "stroke-dasharray": "2 3" });
    text(x, Y.state, end ? T.end : `s${sub(t)}`).style.fill = "var(--state)";
  }
  for (let t = from; t < to; t++) { // δ as the distance from V before to r + γ·V after
    if (!sample.mask[t] || !has(v[t]) || !has(r[t])) continue;
    const x = mid(t),
      y0 = y(v[t]),
      y1 = y(r[t] + gamma * valueAfter(t)),
      strong = t === token,
      fill = d[t] < 0 ? "#542788" : "#b35806",
      up = y1 < y0 ? 1 : -1;
    add("line", { x1: post(t) + 7, x2: x + 9, y1: y0, y2: y0, stroke: "#0b6e7f", "stroke-dasharray": "3 3", "stroke-opacity": strong ? 1 :
        0.45 });
    if (after(t) === t + 1 && t + 1 < to + 1) add("line", { x1: x + 3, x2: post(t + 1) - 7, y1: y1, y2: y(gamma * valueAfter(t)),
      stroke: "#8b95a5", "stroke-dasharray": "1 3" });
    if (Math.abs(y1 - y0) < 1) continue;
    add("line", { x1: x, x2: x, y1: y0, y2: y1 + up * 3, stroke: fill, "stroke-width": strong ? 3.5 : 2.2 });
    add("path", { d: `M${x - 5} ${y1 + up * 6} L${x} ${y1} L${x + 5} ${y1 + up * 6} Z`, fill });
    if (strong) text(x + 8, (y0 + y1) / 2 + 4, "δ", { class: "halo", "font-weight": 700 }).style.cssText =
      `fill:${fill};text-anchor:start`;
  }
  for (let t = from; t <= to; t++) { // V on the posts, drawn over the arrows
    const x = post(t),
      end = t > lastAct && t === sample.length,
      value = end ? endValue : sample.mask[t] ? v[t] : null;
    if (!has(value)) continue;
    const at = end && far ? Y.plot + Y.plotH : y(value);
    if (end && far) add("path", { d: `M${x - 8} ${at - 43} l5 -5 l6 7 l5 -5 M${x - 8} ${at - 38} l5 -5 l6 7 l5 -5`, fill: "none",
      stroke: "#fff", "stroke-width": 2.5 });
    const near = token !== null && (t === token || t === (after(token) ?? sample.length));
    if (has(R[t]) && !end) add("path", { d: `M${x} ${y(R[t]) - 5} l5 5 l-5 5 l-5 -5 Z`, fill: "#fff", stroke: "#6b7280" });
    if (has(R[t]) && t === token) text(x - 9, y(R[t]) + 4, `R${sub(t)}=${num(R[t])}`, { class: "halo" }).style.cssText =
      "text-anchor:end;fill:var(--quiet);font-size:11px";
    add("circle", { cx: x, cy: at, r: near ? 7.5 : 6, fill: end ? "#fff" : "#0b6e7f", stroke: end ? "#0b6e7f" :
      "#fff", "stroke-width": 2 });
    const label = near ? `V${end ? "" : sub(t)}=${num(value)}` : num(value);
    text(x, at + (!end && has(R[t]) && Math.abs(y(R[t]) - y(value)) < 24 && y(R[t]) <= y(value) ? 20 : -11),
  label, { class: "mid halo", "font-weight": near ? 700 : 400 }).style.fill = "var(--state)";
  }
  if (token !== null && sample.mask[token]) {
    const next = after(token) ?? (to === count && count === sample.length ? count : null);
    for (const [t, word] of [
        [token, T.before],
        [next, T.after]
      ])
      if (t !== null && t <= to) text(post(t), Y.plot + Y.plotH + 17, word, { class: "mid ui halo", "font-weight": 650 }).style.cssText =
        "font-size:11px;fill:var(--pick)";
  }
  const rTop = Math.max(...r.slice(from, to).filter(has).map(Math.abs), 1e-9),
    dTop = Math.max(...d.slice(from, to).filter(has).map(Math.abs), 1e-9);
  const bar = (t, x, topValue, at) => {
    if (!has(x)) return;
    const h = x === 0 ? 0 : Math.max(1.5, (Math.abs(x) / topValue) * 17);
    add("line", { x1: mid(t) - gap * 0.36, x2: mid(t) + gap * 0.36, y1: at, y2: at, stroke: "#cdbfa9" });
    add("rect", { x: mid(t) - gap * 0.36, width: 9, y: x < 0 ? at : at - h, height: h, fill: x < 0 ? "#542788" : "#b35806" });
    text(mid(t) + 6, at - 4, num(x, { sign: true }), { "font-weight": t === token ? 700 : 400 });
  };
  for (let t = from; t < to; t++) {
    if (sample.mask[t]) {
      bar(t, r[t], rTop, Y.r);
      bar(t, d[t], dTop, Y.d);
      if (t !== token) text(mid(t), Y.A, num(a[t], { sign: true }));
      const w = columns.whitened?.[t];
      text(mid(t), Y.W, num(w, { sign: true }) + (flipped(columns, t) ? "⇅" : ""), { "font-weight": t === token ? 700 : 400 }).style
        .fill = has(w) ? tone(w) : "";
    } else text(mid(t), Y.r - 4, "🔧");
  }
  for (const { from: f, to: e, text: word } of groups(sample)) { // token boxes fill their gaps; a split character is one box with cells
    if (e <= from || f >= to) continue;
    const f0 = Math.max(f, from),
      e0 = Math.min(e, to);
    for (let t = f0; t < e0; t++) {
      const x = level(columns[state.color]?.[t], top),
        one = e - f === 1,
        tool = !sample.mask[t];
      add("rect", { x: post(t) + (t === f0 ? 5 : 0), y: Y.box, width: gap - (t === f0 ? 5 : 0) - (t === e0 - 1 ? 5 : 0), height: Y.boxH,
        rx: one ? 5 : 0, fill: tool ? "#eee" : colour(x), stroke: "#808a9c", "stroke-dasharray": one && !tool ? undefined : "3 2" });
      if (!one) text(mid(t), Y.box + 32, hex(sample.token_bytes[t])).style.cssText = `font-size:9px;fill:${ink(x)}`;
      const mark = badges(sample, columns, t);
      if (mark) text(post(t) + gap - 7, Y.box + 11, mark).style.cssText = "font-size:12px;text-anchor:end;fill:" + ink(x);
      if (one) fitted(text(mid(t), Y.box + 18, visible(word, 24) || "∅", { class: "mid ui", "font-weight": 650 }), gap - 14, 15).style
        .fill = tool ? "" : ink(x);
      if (one) text(mid(t), Y.box + 32, tool ? "–" : `${QUANTITIES[state.color]} ${shown(state.color, columns[state.color]?.[t])}`).style
        .cssText = `font-size:10px;fill:${tool ? "" : ink(x)}`;
    }
    if (e - f > 1) fitted(text((post(f0) + post(e0)) / 2, Y.box + 18, visible(word, 24), { class: "mid ui halo", "font-weight": 650 }), (
      e0 - f0) * gap - 14, 15);
  }
  if (token !== null && sample.mask[token]) fan(add, text, { token, to, acts, d, a, gamma, lam, mid, Y, gap, post });
  if (from > 0) text(left - 14, Y.box + 22, `‹${from}`).style.cssText = "fill:var(--quiet);text-anchor:end";
  if (to < count) text(W - 4, Y.box + 22, `${sample.length - to}›`).style.cssText = "fill:var(--quiet);text-anchor:end";
  for (let t = from; t < to; t++) add("rect", { class: "hit", x: post(t), y: Y.box - 3, width: gap, height: Y.H - Y
    .box, "data-sample": sample.position, "data-token": t });
  picture.append(root);
  for (const node of root.querySelectorAll("text[data-fit]")) {
    const width = node.getComputedTextLength(),
      room = Number(node.dataset.fit);
    if (width > room) node.style.fontSize = `${Math.max(8, (15 * room) / width)}px`;
    while (node.getComputedTextLength() > room && node.textContent.length > 2) node.textContent = [...node.textContent.replace(/…$/, "")]
      .slice(0, -1).join("") + "…";
  }
}

function fitted(node, room, size) {
  node.dataset.fit = room;
  node.style.fontSize = `${size}px`;
  return node;
}
// Every later δ comes back to the chosen token, (γλ)ᵏ of it: the width of a ribbon is its weight.
function fan(add, text, { token, to, acts, d, a, gamma, lam, mid, Y, gap, post }) {
  const ahead = acts.filter((t) => t >= token),
    x0 = mid(token),
    decay = gamma * lam;
  ahead.forEach((t, k) => {
    const weight = decay ** k;
    if (t >= to || (weight < 0.005 && k)) return;
    const x = mid(t),
      y0 = Y.fan + 14,
      y1 = Y.A - 20;
    add("path", { d: `M${x} ${y0} C${x} ${y0 + 42} ${x0} ${y0 + 22} ${x0} ${y1}`, fill: "none", stroke: d[t] < 0 ? "#542788" :
        "#e08214", "stroke-width": Math.max(0.7, 8 * weight), "stroke-opacity": 0.18 + 0.5 * weight, "stroke-linecap": "round" });
    text(x, y0 - 3, k === 0 ? "×1" : `×${num(weight, { digits: 2 })}`, { class: "mid halo" }).style.fontSize = "11px";
  });
  const beyond = ahead.filter((t) => t >= to).length;
  if (beyond) text(post(to) - 4, Y.fan + 34, `+${beyond} →`, { class: "halo" }).style.cssText = "text-anchor:end;fill:var(--quiet)";
  add("rect", { x: x0 - Math.min(gap, 108) / 2 + 2, y: Y.A - 17, width: Math.min(gap, 108) - 4, height: 23, rx: 6, fill: "#fff",
    stroke: "#1d4ed8", "stroke-width": 2 });
  const label = text(x0, Y.A, `${gap > 88 ? `A${sub(token)} ` : ""}${num(a[token], { sign: true })}`, { "font-weight": 700,
    id: "picture-A" });
  label.style.fill = tone(a[token]);
}

let tableOf = []; // what the table was made from: walking along a sample only moves its mark
function drawTable() { // the same for screen readers, and for whoever wants numbers
  const { sample, token } = shownToken(), table = $("table"), columns = view.get(sample?.position);
  table.querySelector("tr.pinned")?.classList.remove("pinned");
  if (sample && tableOf[0] === columns && tableOf[1] === T) return table.querySelector(`tr[data-token="${token}"]`)?.classList.add(
    "pinned");
  table.replaceChildren();
  tableOf = [columns, T];
  if (!sample) return;
  const names = ["values", "token_level_rewards", "deltas", "advantages", "returns", "whitened", "kl", "ratio"];
  const heads = ["i", "token", `V(s_i) ${T.before}`, "r_i", "δ_i", "A_i", "R_i", "Â_i", "KL_i", "ρ_i", ""];
  const body = el("tbody", {});
  for (let t = 0; t < Math.min(sample.token_bytes.length, 300); t++) {
    const group = groupOf(sample, t),
      word = visible(group.text, 24) + (group.to - group.from > 1 ? ` [${hex(sample.token_bytes[t])}]` : "");
    const cells = names.map((name) => el("td", { "data-column": name }, sample.mask[t] ? (name === "values" || name === "ratio" ? num(
      columns[name]?.[t]) : num(columns[name]?.[t], { sign: true })) : "–"));
    body.append(el("tr", { "data-sample": sample.position, "data-token": t, class: t === token ? "pinned" : null }, el(
    "th", { scope: "row" }, String(t)), el("td", {}, word), ...cells, el("td", {}, badges(sample, columns, t))));
  }
  const end = sample.length <= 300 ? [el("tr", {}, el("th", { scope: "row" }, T.end), el("td", {}, ""), el("td", {}, num(sample
    .bootstrap ?? 0)))] : [];
  table.append(el("caption", {}, T.rule), el("thead", {}, el("tr", {}, ...heads.map((head) => el("th", { scope: "col" }, head)))), body);
  body.append(...end);
}

// ---- the chosen token, term by term ----

const traceCache = new Map();
let traceTurn = 0;
async function drawTraces() {
  const turn = ++traceTurn,
    { sample, token } = shownToken(),
    box = $("traces");
  if (!sample || token === null) {
    $("token-name").textContent = "";
    return box.replaceChildren(el("p", { class: "quiet" }, T.hint));
  }
  const columns = view.get(sample.position),
    group = groupOf(sample, token);
  $("token-name").textContent = `i = ${token}${sample.mask[token] ? T.papers(sample.mask.slice(0, token + 1).filter((m) => m)
    .length) : ""}  ${visible(group.text, 24)}  (id ${sample.token_ids[token]})` + (group.to - group.from > 1 ?
    `  [${hex(sample.token_bytes[token])}]` : "");
  const key = `${sample.step}/${sample.position}/${token}`;
  if (!traceCache.has(key)) {
    if (traceCache.size > 500) traceCache.clear();
    traceCache.set(key, await source.traces(state.step, sample, token).catch(() => null));
  }
  if (turn !== traceTurn) return;
  const { traces, words } = traceCache.get(key) ?? {}, out = [];
  if (settings().changed && sample.mask[token]) out.push(whatIf(sample, columns, token));
  if (flipped(columns, token)) out.push(el("div", { class: "note" }, T.flipped));
  if (!sample.mask[token]) out.push(el("div", { class: "note" }, T.tool));
  else if (!traces) out.push(el("div", { class: "note" }, T.none));
  for (const trace of traces ?? []) {
    const [left, ...rest] = trace.formula.split(" = "), formula = rest.join(" = ");
    const said = words[trace.words][state.lang],
      meaning = said[state.kid ? "kid" : "expert"];
    const verdict = trace.ok === null || trace.ok === undefined ? null : el("span", { class: trace.ok ? "ok" : "off" }, trace.ok ?
      " ✓" : " ✗");
    const recorded = trace.recorded === null || trace.recorded === undefined ? "" : `  ${T.recorded} ${exact(trace.recorded)}`;
    out.push(el("div", { class: "trace", "data-trace": trace.name },
      el("div", { class: "label" }, el("b", {}, state.kid ? said.formula_in_words : T.names[trace.name] ?? trace.name), meaning ?
        el("div", {}, meaning) : null),
      el("div", { class: "math" },
        el("div", { class: "eq" }, formula ? el("b", {}, left) : left, formula ? ` = ${formula}` : ""),
        el("div", { class: "eq" }, `= ${state.kid ? plain(trace.substituted, T.almost) : trace.substituted}`),
        el("div", { class: "eq" }, "= ", el("b", {}, exact(trace.result)), el("span", { class: "quiet" }, recorded), verdict))));
  }
  box.replaceChildren(...out);
}
const exact = (x) => (typeof x === "string" ? x : state.kid ? plain(num(x, { digits: 5 }), T.almost) : num(x, { digits: 5 }));

function whatIf(sample, columns, t) {
  const { gamma, lam } = settings(), i = sub(t), next = sample.mask.findIndex((m, n) => n > t && m), d = columns.deltas[t], v = sample
    .columns.values[t];
  const later = next < 0 ? 0 : columns.advantages[next],
    line = (...parts) => el("div", { class: "math eq" }, ...parts);
  const out = el("div", { class: "note if", id: "if" }, el("b", {},
      `${T.ifTitle}: γ=${num(gamma, { digits: 2 })} λ=${num(lam, { digits: 2 })}`),
    line(
      `A${i} = δ${i} + γλ·A${next < 0 ? "" : sub(next)} = ${num(d)} + ${num(gamma * lam)}·${later < 0 ? `(${num(later)})` : num(later)} = `,
      el("b", {}, num(columns.advantages[t], { sign: true, digits: 5 }))),
    line(`R${i} = ${num(columns.returns[t], { digits: 5 })}   Â${i} = ${num(columns.whitened[t], { sign: true })}`));
  if (lam === 0) out.append(line(`${T.lam0} = ${num(d, { sign: true, digits: 5 })}`));
  if (lam === 1) {
    let g = sample.bootstrap ?? 0;
    for (let n = sample.mask.length - 1; n >= t; n--)
      if (sample.mask[n]) g = sample.columns.token_level_rewards[n] + gamma * g;
    out.append(line(`${T.lam1} = ${num(g, { digits: 5 })} − ${num(v, { digits: 5 })} = ${num(g - v, { sign: true, digits: 5 })}`));
  }
  return out;
}

// ---- curves ----

function drawCurves() {
  const box = $("curves");
  box.replaceChildren();
  CURVES.forEach((names, i) => {
    const lines = names.map((name) => run.curves[name] ?? []).map((line) => line.filter(([, value]) => has(value))),
      points = lines.flat();
    const figure = el("figure", { "data-curve": names[0] });
    const caption = el("figcaption", {}, T.curve[i], el("b", {}, lines.map((line) => (line.length ? num(line.at(-1)[1]) : "–")).join(
      " / ")));
    figure.append(caption);
    if (points.length) {
      const W = 230,
        H = 62,
        xs = points.map((p) => p[0]),
        ys = points.map((p) => p[1]),
        x1 = Math.max(...xs, 1),
        [y0, y1] = [Math.min(...ys, 0), Math.max(...ys, 1e-9)];
      const X = (step) => 3 + (step / x1) * (W - 6),
        Y = (value) => H - 5 - ((value - y0) / (y1 - y0 || 1)) * (H - 12);
      const plot = svg("svg", { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: "none",
      role: "img", "aria-label": `${T.curve[i]}: ${num(ys[0])} → ${num(ys.at(-1))}` });
      plot.append(svg("line", { x1: 0, x2: W, y1: Y(0), y2: Y(0), stroke: "#dfe3ea" }), svg("line", { x1: X(state.step ?? 0), x2: X(
          state.step ?? 0), y1: 0, y2: H, stroke: "#1d4ed8", "stroke-opacity": 0.5, "vector-effect": "non-scaling-stroke" }));
      lines.forEach((line, k) => plot.append(svg("polyline", { points: line.map(([s, value]) => `${X(s)},${Y(value)}`).join(" "),
        fill: "none", stroke: k ? "#b35806" : "#0b6e7f", "stroke-width": 1.8, "stroke-dasharray": k ? "5 3" :
        undefined, "vector-effect": "non-scaling-stroke", "stroke-linejoin": "round" })));
      plot.addEventListener("click", (event) => {
        const step = (event.offsetX / plot.clientWidth) * x1;
        if (run.steps.length) show(run.steps.reduce((best, s) => (Math.abs(s - step) < Math.abs(best - step) ? s : best)));
      });
      figure.append(plot);
    }
    box.append(figure);
  });
}

// ---- controls ----

function segment(id, options, current, choose) {
  const box = $(id),
    had = box.contains(document.activeElement) ? document.activeElement.dataset.value : null;
  box.replaceChildren(...Object.entries(options).map(([value, label]) => {
    const node = el("button", { type: "button", "data-value": value, "aria-pressed": String(current(value)) }, label);
    node.addEventListener("click", () => choose(value));
    return node;
  }));
  if (had !== null) box.querySelector(`[data-value="${had}"]`)?.focus();
}

function drawControls() {
  T = { ...TEXT[state.lang], ...(state.kid ? KID[state.lang] : {}) };
  document.documentElement.lang = state.lang === "zh" ? "zh-Hans" : "en";
  for (const node of document.querySelectorAll("[data-i18n]")) node.textContent = T[node.dataset.i18n];
  const { est, gamma, lam, changed } = settings(), at = stops().indexOf(state.step);
  segment("lang", { zh: "中文", en: "English", kid: state.lang === "zh" ? "12岁" : "Age 12" }, (v) => (v === "kid" ? state.kid : v === state
    .lang), (v) => { if (v === "kid") state.kid = !state.kid;
    else state.lang = v;
    draw(); });
  segment("color", QUANTITIES, (v) => v === state.color, (v) => { state.color = v;
    draw(); });
  segment("est", ESTIMATORS, (v) => v === est, (v) => { state.est = v;
    tidy();
    draw(); });
  for (const [id, value] of [
      ["gamma", gamma],
      ["lam", lam]
    ]) {
    $(id).value = value;
    $(id + "-now").textContent = id === "lam" && est === null ? "–" : num(value, { digits: 2 });
  }
  $("reset").disabled = !changed;
  $("whatif").hidden = !changed;
  $("whatif").textContent = T.whatif(loaded.size);
  for (const [id, options] of [
      ["sort", T.sorts],
      ["filter", T.filters]
    ]) $(id).replaceChildren(...Object.entries(options).map(([value, label]) => el("option", { value, selected: state[id] === value ? "" :
      null }, label)));
  $("same").checked = state.prompt !== null;
  $("run").textContent = visible(run.name, 60);
  $("step").max = Math.max(stops().length - 1, 0);
  $("step").value = Math.max(at, 0);
  $("step-now").textContent = run.steps.length ? `${state.step} / ${run.steps.at(-1)}` + (state.prompt ? ` (${stops().length})` : "") : "–";
  $("earlier").disabled = at <= 0;
  $("later").disabled = at >= stops().length - 1;
  $("follow-box").hidden = !source.live;
  $("follow").checked = state.follow;
  const top = scale(),
    zero = state.color === "ratio" ? "1" : "0",
    edge = (s) => (state.color === "ratio" ? num(1 + s * top, { digits: 2 }) : num(s * top, { sign: true, digits: 2 }));
  const ramp = svg("svg", { width: 84, height: 10, "aria-hidden": "true" }, ...Array.from({ length: 21 }, (_, k) => svg("rect", { x: k *
      4, width: 4, height: 10, "shape-rendering": "crispEdges", fill: colour(k / 10 - 1) })));
  $("legend").replaceChildren(edge(-1), ramp, edge(1));
  $("legend").title = `${edge(-1)} … ${zero} … ${edge(1)}`;
}

function tidy() { // an address that says what was recorded anyway says nothing
  if (settings().changed) return;
  state.est = state.gamma = state.lam = null;
}

function draw() {
  recompute();
  drawControls();
  drawList();
  drawFence();
  drawTable();
  drawTraces();
  drawCurves();
  writeHash();
}

function drawChoice() {
  markChosen();
  drawFence();
  drawTable();
  drawTraces();
}

// ---- moving about ----

let turn = 0;
async function show(step, { keep = false } = {}) {
  const mine = ++turn;
  const found = step === null ? [] : await source.index(step);
  if (mine !== turn) return;
  if (!keep) { state.sample = null;
    state.token = null; }
  [state.step, index, loaded, hover, wanted, expanded, windowStart] = [step, found, new Map(), null, PAGE, new Set(), 0];
  if (state.prompt && !index.some((row) => row.prompt_key === state.prompt)) state.prompt = null;
  await load(mine);
  if (mine !== turn) return;
  if (!loaded.has(state.sample)) { state.sample = striking()?.position ?? null;
    state.token = null;
    keep = false; }
  if (!keep && state.sample !== null && state.token === null) state.token = surprising(loaded.get(state.sample));
  draw();
  document.querySelector(".chip.pinned")?.scrollIntoView({ block: "nearest" });
}

function striking() {
  const rows = chosenRows().filter((row) => loaded.has(row.position));
  return rows.find((row) => row.clipped) ?? rows.reduce((best, row) => (best && best.max_abs_a >= row.max_abs_a ? best : row), null);
}

function surprising(sample) { // the first view shows something to look at: a clipped token, else the largest |A| before the last (there A is δ)
  if (!sample) return null;
  const last = sample.mask.lastIndexOf(1),
    size = (t) => (t === last ? 0 : Math.abs(sample.columns.advantages?.[t] ?? 0));
  return sample.clipped?.[0] ?? sample.token_bytes.reduce((best, _, t) => (size(t) > size(best) ? t : best), 0);
}
async function load(mine = turn) {
  const rows = chosenRows().slice(0, wanted).map((row) => row.position),
    extra = index.some((row) => row.position === state.sample) ? [state.sample] : [];
  const missing = [...new Set([...rows, ...extra])].filter((position) => !loaded.has(position));
  for (let i = 0; i < missing.length; i += PAGE) {
    const got = await source.samples(state.step, missing.slice(i, i + PAGE));
    if (mine !== turn) return;
    for (const sample of got) loaded.set(sample.position, sample);
  }
}
const stops = () => (state.prompt && promptSteps.length ? promptSteps : run.steps); // where the scrubber can stand
async function followPrompt() {
  promptSteps = state.prompt ? await source.stepsOf(state.prompt) : [];
}
async function reload() {
  await load();
  draw();
}

function pin(sample, token) {
  [state.sample, state.token, hover] = [sample, token, null];
  writeHash();
  drawChoice();
  if (token >= CHIPS && !document.querySelector(".chip.pinned")) drawList();
  document.querySelector(".chip.pinned")?.scrollIntoView({ block: "nearest" });
}

function walk(tokens, samples) {
  const { sample, token } = shownToken(), rows = chosenRows().filter((row) => loaded.has(row.position));
  if (!sample) return;
  let next = sample;
  if (samples) next = loaded.get(rows[Math.max(0, Math.min(rows.length - 1, rows.findIndex((row) => row.position === sample.position) +
    samples))]?.position) ?? sample;
  pin(next.position, Math.max(0, Math.min(next.token_bytes.length - 1, token === null ? 0 : token + tokens)));
}

document.addEventListener("keydown", (event) => {
  if (event.target.closest("input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  if (moves[event.key]) { event.preventDefault();
    walk(...moves[event.key]); if (event.target.closest(".chip")) document.querySelector(".chip.pinned")?.focus(); } else if (event
    .key === "Escape") {
    [state.token, hover] = [null, null];
    writeHash();
    drawChoice(); } else if (event.key === "Enter" && hover && !event.target.closest("button")) pin(hover.sample, hover.token);
});
let pointer = {};
const tokenAt = (node) => node.closest?.("[data-token]")?.dataset;
for (const id of ["list", "picture", "table"]) {
  $(id).addEventListener("click", (event) => {
    const expand = event.target.closest("[data-expand]"),
      at = tokenAt(event.target);
    if (event.target.id === "more") { wanted += PAGE;
      reload(); } else if (expand) { expanded.add(Number(expand.dataset.expand));
      drawList(); } else if (at) pin(Number(at.sample), Number(at.token));
  });
  $(id).addEventListener("pointermove", (event) => { // moved, not merely under the pointer when the page changed
    const at = tokenAt(event.target);
    const still = event.clientX === pointer.x && event.clientY === pointer.y;
    pointer = { x: event.clientX, y: event.clientY };
    if (!at || still) return;
    const same = hover ?? state;
    if (Number(at.sample) === same.sample && Number(at.token) === same.token) return;
    hover = { sample: Number(at.sample), token: Number(at.token) };
    drawChoice();
  });
  $(id).addEventListener("pointerleave", () => { if (hover) { hover = null;
      drawChoice(); } });
}
$("gamma").addEventListener("input", (event) => { state.gamma = Number(event.target.value);
  tidy();
  draw(); });
$("lam").addEventListener("input", (event) => { state.est = "gae";
  state.lam = Number(event.target.value);
  tidy();
  draw(); });
$("reset").addEventListener("click", () => { state.est = state.gamma = state.lam = null;
  draw(); });
$("step").addEventListener("input", (event) => { state.follow = false;
  show(stops()[Number(event.target.value)]); });
$("earlier").addEventListener("click", () => { state.follow = false;
  show(stops()[stops().indexOf(state.step) - 1]); });
$("later").addEventListener("click", () => show(stops()[stops().indexOf(state.step) + 1]));
$("sort").addEventListener("change", (event) => { state.sort = event.target.value;
  reload(); });
$("filter").addEventListener("change", (event) => { state.filter = event.target.value;
  reload(); });
$("same").addEventListener("change", async (event) => { state.prompt = event.target.checked ? index.find((row) => row.position === state
    .sample)?.prompt_key ?? null : null;
  await followPrompt();
  reload(); });
$("follow").addEventListener("change", (event) => { state.follow = event.target.checked;
  writeHash();
  poll(); });
$("as-table").addEventListener("click", (event) => event.target.setAttribute("aria-pressed", String($("table-box").classList.toggle(
  "shown"))));
window.addEventListener("hashchange", () => { if (location.hash !== written) { readHash();
    show(run.steps.includes(state.step) ? state.step : run.steps.at(-1) ?? null, { keep: true }); } });
let resizing = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(drawFence); });

async function poll() {
  try {
    const before = run.steps.length;
    run = await source.run();
    if (state.follow && run.steps.length && run.steps.at(-1) !== state.step) await show(run.steps.at(-1));
    else if (run.steps.length !== before) state.step === null ? await show(run.steps.at(-1)) : (drawControls(), drawCurves());
  } catch { /* the job or the server may be away for a moment: ask again */ }
}

readHash();
run = await source.run();
await followPrompt();
const first = run.steps.includes(state.step) ? state.step : run.steps.at(-1) ?? null;
await show(first, { keep: state.sample !== null });
document.documentElement.dataset.ready = "1";
if (source.live) setInterval(poll, 2000);
