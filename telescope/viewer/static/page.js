// One page, two homes: live beside a run (telescope.viewer.server), or inlined in a report.
//
// Every number and every sentence about a number comes from Python. Text that a model wrote enters
// the document through textContent alone.

import { $, darkScheme } from "./tools.js";
import { CHIPS, PAGE, isOwnAddress, readHash, state, stops, store, writeHash } from "./state.js";
import { source } from "./source.js";
import {
  firstWithLam,
  forgetUnchanged,
  forgetWhatIf,
  refreshView,
  settings,
  usesLam,
} from "./whatif.js";
import { chosenRows, loadedRows, shownToken, striking, surprising } from "./choice.js";
import { drawList, markChosen } from "./list.js";
import { drawFence } from "./fence.js";
import { drawTable } from "./table.js";
import { drawTraces } from "./traces.js";
import { drawCurves } from "./curves.js";
import { drawPaths } from "./paths.js";
import { drawControls } from "./controls.js";
import { drawAsk } from "./ask.js";

// ---- drawing ----

function draw() {
  refreshView(draw);
  drawControls(draw);
  drawList();
  drawFence();
  drawTable();
  drawTraces();
  drawCurves(show);
  drawPaths();
  drawAsk();
  writeHash();
}

// After a step along the tokens: the list and the controls stay as they are.
function drawChoice() {
  markChosen();
  drawFence();
  drawTable();
  drawTraces();
}

function scrollToPinned() {
  document.querySelector(".chip.pinned")?.scrollIntoView({ block: "nearest" });
}

// ---- moving about ----

let turn = 0; // of `show`: an answer that comes late is dropped

// Shows a step. `keep`: with the sample and token that the address names.
async function show(step, { keep = false } = {}) {
  const mine = ++turn;
  const nothing = { index: [], estimators: [], paths: null };
  const { index, estimators, paths } = step === null ? nothing : await source.index(step);
  if (mine !== turn) return;
  state.step = step;
  if (!keep) unpin();
  Object.assign(store, { index, estimators, paths, loaded: new Map(), view: new Map(), hover: null });
  Object.assign(store, { wanted: PAGE, expanded: new Set(), windowStart: 0 });
  const recorded = index.some((row) => row.prompt_key === state.prompt);
  if (state.prompt && !recorded) state.prompt = null;
  await load(mine);
  if (mine !== turn) return;
  if (!store.loaded.has(state.sample)) {
    state.sample = striking()?.position ?? null;
    state.token = null;
    keep = false;
  }
  if (!keep && state.sample !== null && state.token === null) {
    state.token = surprising(store.loaded.get(state.sample));
  }
  draw();
  scrollToPinned();
}

function unpin() {
  state.sample = null;
  state.token = null;
}

// Loads the rows of the list, and the sample that the address names.
async function load(mine = turn) {
  const wanted = chosenRows().slice(0, store.wanted).map((row) => row.position);
  if (store.index.some((row) => row.position === state.sample)) wanted.push(state.sample);
  const missing = [...new Set(wanted)].filter((position) => !store.loaded.has(position));
  for (let i = 0; i < missing.length; i += PAGE) {
    const samples = await source.samples(state.step, missing.slice(i, i + PAGE));
    if (mine !== turn) return;
    for (const sample of samples) store.loaded.set(sample.position, sample);
  }
}

async function reload() {
  await load();
  draw();
}

async function followPrompt() {
  store.promptSteps = state.prompt ? await source.stepsOf(state.prompt) : [];
}

function pin(sample, token) {
  state.sample = sample;
  state.token = token;
  store.hover = null;
  writeHash();
  drawChoice();
  const pinned = document.querySelector(".chip.pinned");
  if (token >= CHIPS && !pinned) drawList();
  scrollToPinned();
}

function walk(tokens, samples) {
  const { sample, token } = shownToken();
  if (!sample) return;
  let next = sample;
  if (samples) {
    const rows = loadedRows();
    const at = rows.findIndex((row) => row.position === sample.position) + samples;
    const row = rows[Math.max(0, Math.min(rows.length - 1, at))];
    next = store.loaded.get(row?.position) ?? sample;
  }
  const to = token === null ? 0 : token + tokens;
  pin(next.position, Math.max(0, Math.min(next.token_bytes.length - 1, to)));
}

// ---- keys and pointer ----

const MOVES = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  if (target.closest("input, select") || event.altKey || event.ctrlKey || event.metaKey) return;
  if (MOVES[key]) {
    event.preventDefault();
    walk(...MOVES[key]);
    if (target.closest(".chip")) document.querySelector(".chip.pinned")?.focus();
  } else if (key === "Escape") {
    state.token = null;
    store.hover = null;
    writeHash();
    drawChoice();
  } else if (key === "Enter" && store.hover && !target.closest("button")) {
    pin(store.hover.sample, store.hover.token);
  }
});

function tokenUnder(node) {
  const found = node.closest?.("[data-token]")?.dataset;
  return found ? { sample: Number(found.sample), token: Number(found.token) } : null;
}

function onClick(event) {
  const expand = event.target.closest("[data-expand]");
  const at = tokenUnder(event.target);
  if (event.target.id === "more") {
    store.wanted += PAGE;
    reload();
  } else if (expand) {
    store.expanded.add(Number(expand.dataset.expand));
    drawList();
  } else if (at) {
    pin(at.sample, at.token);
  }
}

let pointer = {};

// Previews a token when the pointer moves, not when the page moves under the pointer.
function onMove(event) {
  const still = event.clientX === pointer.x && event.clientY === pointer.y;
  pointer = { x: event.clientX, y: event.clientY };
  const at = tokenUnder(event.target);
  if (!at || still) return;
  const now = store.hover ?? state;
  if (at.sample === now.sample && at.token === now.token) return;
  store.hover = at;
  drawChoice();
}

function onLeave() {
  if (!store.hover) return;
  store.hover = null;
  drawChoice();
}

for (const id of ["list", "picture", "table"]) {
  $(id).addEventListener("click", onClick);
  $(id).addEventListener("pointermove", onMove);
  $(id).addEventListener("pointerleave", onLeave);
}

// ---- controls ----

const on = (id, event, handle) => $(id).addEventListener(event, handle);

on("gamma", "input", (event) => {
  state.gamma = Number(event.target.value);
  forgetUnchanged();
  draw();
});
on("lam", "input", (event) => {
  if (!usesLam(settings().est)) state.est = firstWithLam();
  state.lam = Number(event.target.value);
  forgetUnchanged();
  draw();
});
on("reset", "click", () => {
  forgetWhatIf();
  draw();
});
on("step", "input", (event) => {
  state.follow = false;
  show(stops()[Number(event.target.value)]);
});
on("earlier", "click", () => {
  state.follow = false;
  show(stops()[stops().indexOf(state.step) - 1]);
});
on("later", "click", () => show(stops()[stops().indexOf(state.step) + 1]));
for (const id of ["sort", "filter"]) {
  on(id, "change", (event) => {
    state[id] = event.target.value;
    reload();
  });
}
on("same", "change", async (event) => {
  const row = store.index.find((each) => each.position === state.sample);
  state.prompt = event.target.checked ? row?.prompt_key ?? null : null;
  await followPrompt();
  reload();
});
on("follow", "change", (event) => {
  state.follow = event.target.checked;
  writeHash();
  poll();
});
on("as-table", "click", (event) => {
  const isShown = $("table-box").classList.toggle("shown");
  event.target.setAttribute("aria-pressed", String(isShown));
});

function firstStep() {
  const { steps } = store.run;
  return steps.includes(state.step) ? state.step : steps.at(-1) ?? null;
}

window.addEventListener("hashchange", () => {
  if (isOwnAddress()) return;
  readHash();
  show(firstStep(), { keep: true });
});
let resizing = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resizing);
  resizing = requestAnimationFrame(drawFence);
});
darkScheme.addEventListener("change", draw);

// ---- a run that goes on ----

async function poll() {
  try {
    const before = store.run.steps.length;
    store.run = await source.run();
    const newest = store.run.steps.at(-1) ?? null;
    const grew = store.run.steps.length !== before;
    if (state.follow && newest !== null && newest !== state.step) await show(newest);
    else if (grew && state.step === null) await show(newest);
    else if (grew) {
      drawControls(draw);
      drawCurves(show);
    }
  } catch {
    // The job or the server may be away for a moment: ask again.
  }
}

readHash();
store.run = await source.run();
await followPrompt();
await show(firstStep(), { keep: state.sample !== null });
document.documentElement.dataset.ready = "1";
if (source.live) setInterval(poll, 2000);
