// The bars at the top: step, language, colour, estimator, γ and λ.

import { $, colour, el, num, svg, visible } from "./tools.js";
import { QUANTITIES, state, stops, store, texts } from "./state.js";
import { source } from "./source.js";
import { forgetUnchanged, settings, whatIf } from "./whatif.js";
import { scale } from "./choice.js";

// Buttons of which some are pressed. The one with the focus keeps it.
function segment(id, options, { isPressed, choose, disabled = false }) {
  const box = $(id);
  const focused = box.contains(document.activeElement)
    ? document.activeElement.dataset.value
    : null;
  const buttons = Object.entries(options).map(([value, label]) => {
    const pressed = String(isPressed(value));
    const attributes = { type: "button", "data-value": value, "aria-pressed": pressed };
    const node = el("button", { ...attributes, disabled: disabled ? "" : null }, label);
    node.addEventListener("click", () => choose(value));
    return node;
  });
  box.replaceChildren(...buttons);
  buttons.find((node) => node.dataset.value === focused)?.focus();
}

function drawLanguages(draw) {
  const kid = state.lang === "zh" ? "12岁" : "Age 12";
  segment(
    "lang",
    { zh: "中文", en: "English", kid },
    {
      isPressed: (value) => (value === "kid" ? state.kid : value === state.lang),
      choose: (value) => {
        if (value === "kid") state.kid = !state.kid;
        else state.lang = value;
        draw();
      },
    },
  );
}

function drawColours(draw) {
  segment("color", QUANTITIES, {
    isPressed: (value) => value === state.color,
    choose: (value) => {
      state.color = value;
      draw();
    },
  });
  const top = scale();
  const isRatio = state.color === "ratio";
  const edge = (side) =>
    isRatio
      ? num(1 + side * top, { digits: 2 })
      : num(side * top, { sign: true, digits: 2 });
  const stripes = Array.from({ length: 21 }, (_, k) =>
    svg("rect", {
      x: k * 4,
      width: 4,
      height: 10,
      "shape-rendering": "crispEdges",
      fill: colour(k / 10 - 1),
    }),
  );
  const ramp = svg("svg", { width: 84, height: 10, "aria-hidden": "true" }, ...stripes);
  $("legend").replaceChildren(edge(-1), ramp, edge(1));
  $("legend").title = `${edge(-1)} … ${isRatio ? "1" : "0"} … ${edge(1)}`;
}

function drawSlider(id, value, choices, disabled) {
  const slider = $(id);
  slider.value = value ?? 1;
  slider.disabled = disabled;
  $(`${id}-now`).textContent = num(value, { digits: 2 });
  const stopsShown = (choices ?? []).map((choice) => el("option", { value: choice }));
  $(`${id}-stops`).replaceChildren(...stopsShown);
}

function drawWhatIf(draw) {
  const T = texts();
  const { est, gamma, lam, changed } = settings();
  const canTry = source.canTry(state.step);
  const offers = store.estimators.map(({ name, label }) => [name, visible(label, 24)]);
  segment("est", Object.fromEntries(offers), {
    isPressed: (value) => value === est,
    choose: (value) => {
      state.est = value;
      forgetUnchanged();
      draw();
    },
    disabled: !canTry,
  });
  const grid = source.grid(state.step);
  drawSlider("gamma", gamma, grid?.gammas, !canTry);
  drawSlider("lam", lam, grid?.lams, !canTry);
  $("reset").disabled = !changed;
  $("whatif").hidden = !changed && (canTry || !store.run.steps.length);
  $("whatif").classList.toggle("pending", whatIf.pending);
  $("whatif").textContent = canTry ? T.whatif(store.loaded.size) : T.noWhatIf;
  if (whatIf.error) $("whatif").append(` ${whatIf.error}`);
}

function drawChoices(id, options) {
  const nodes = Object.entries(options).map(([value, label]) =>
    el("option", { value, selected: state[id] === value ? "" : null }, label),
  );
  $(id).replaceChildren(...nodes);
}

function drawScrubber() {
  const at = stops().indexOf(state.step);
  const last = stops().length - 1;
  $("step").max = Math.max(last, 0);
  $("step").value = Math.max(at, 0);
  const several = state.prompt ? ` (${stops().length})` : "";
  const { steps } = store.run;
  $("step-now").textContent = steps.length ? `${state.step} / ${steps.at(-1)}${several}` : "–";
  $("earlier").disabled = at <= 0;
  $("later").disabled = at >= last;
  $("follow-box").hidden = !source.live;
  $("follow").checked = state.follow;
}

// `draw`: draws the whole page.
export function drawControls(draw) {
  const T = texts();
  document.documentElement.lang = state.lang === "zh" ? "zh-Hans" : "en";
  for (const node of document.querySelectorAll("[data-i18n]")) {
    node.textContent = T[node.dataset.i18n];
  }
  $("run").textContent = visible(store.run.name, 60);
  $("same").checked = state.prompt !== null;
  drawLanguages(draw);
  drawColours(draw);
  drawWhatIf(draw);
  drawChoices("sort", T.sorts);
  drawChoices("filter", T.filters);
  drawScrubber();
}
