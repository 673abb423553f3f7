// The step that is shown: a slider over the recorded steps, one back, one on, follow the newest.
// What is chosen in a step stays chosen in the next.

import { run, sampleShown, step, stepShown, viewShown } from "../core/data.js";
import { isLive } from "../core/source.js";
import { go, state } from "../core/state.js";
import { stops } from "../core/stops.js";
import { t } from "../core/text.js";
import { html, useRef } from "../vendor/preact.js";

// The sample that the visitor looks at stays, even if the page chose it.
function show(changes, options) {
  const read = viewShown.peek() === "samples" ? sampleShown.peek() : null;
  go({ sample: state.sample.peek() ?? read, ...changes }, options);
}

export function StepBar() {
  const all = run.value?.ledger ?? [];
  if (!all.length) return null;
  const recorded = viewShown.value === "samples" ? stops.value : all;
  const index = recorded.indexOf(stepShown.value);
  const goTo = (place, options) => show({ step: recorded[place], follow: null }, options);
  return html`
    <div id="steps" class="step-bar" role="group" aria-label=${t("run.step_bar")} aria-busy=${step.loading ? "true" : "false"}>
      <label class="step-label" for="step">${t("run.step")} <output id="step-now">${stepShown.value}</output></label>
      <span class="walk">
        <${Arrow} id="earlier" sign="◀" label=${t("run.back")} to=${index - 1} ...${{ recorded, goTo }} />
        <${Slider} recorded=${recorded} index=${index} goTo=${goTo} />
        <${Arrow} id="later" sign="▶" label=${t("run.on")} to=${index + 1} ...${{ recorded, goTo }} />
      </span>
      <span class="of quiet">
        ${t("run.recorded", { i: index + 1, n: recorded.length })}
        ${recorded.length < all.length ? t("samples.stops.prompt") : null}
      </span>
      ${isLive ? html`<${Follow} />` : null}
    </div>
  `;
}

function Arrow({ id, sign, label, to, recorded, goTo }) {
  return html`<button
    id=${id}
    type="button"
    aria-label=${label}
    title=${label}
    disabled=${to < 0 || to >= recorded.length}
    onClick=${() => goTo(to)}
  >
    ${sign}
  </button>`;
}

// One drag is one step of the back button.
function Slider({ recorded, index, goTo }) {
  const isDragged = useRef(false);
  const change = (event) => {
    goTo(Number(event.target.value), { replace: isDragged.current });
    isDragged.current = true;
  };
  const end = () => {
    isDragged.current = false;
  };
  return html`<input
    id="step"
    type="range"
    min="0"
    max=${Math.max(recorded.length - 1, 0)}
    step="1"
    value=${index}
    aria-valuetext=${t("run.at_step", { n: recorded[index] })}
    disabled=${recorded.length < 2}
    onInput=${change}
    onChange=${end}
  />`;
}

function Follow() {
  const toggle = (event) => {
    if (event.target.checked) show({ follow: true, step: null });
    else show({ follow: null, step: stepShown.peek() });
  };
  return html`<label class="tool">
    <input id="follow" type="checkbox" checked=${Boolean(state.follow.value)} onChange=${toggle} />
    ${t("run.follow")}
  </label>`;
}
