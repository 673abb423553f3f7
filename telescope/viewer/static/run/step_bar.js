// The step that is shown: a slider over the recorded steps, one back, one on, follow the newest.
// What is chosen in a step stays chosen in the next.

import {
  onlyPrompt,
  pathIn,
  resource,
  run,
  runId,
  sampleShown,
  step,
  stepShown,
  viewShown,
} from "../core/data.js";
import { Check, Slider } from "../core/parts.js";
import { isLive } from "../core/source.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { computed, html } from "../vendor/preact.js";

const ofPrompt = resource(
  () => (onlyPrompt.value && runId.value ? pathIn(`/prompts/${onlyPrompt.value}`) : null),
  { ownerOf: () => onlyPrompt.value },
);

// The steps at which the page can stand: all recorded ones, or those that recorded one prompt.
const stops = computed(() => {
  const recorded = run.value?.ledger ?? [];
  const rows = ofPrompt.signal.value.value?.rows;
  if (!onlyPrompt.value || !rows) return recorded;
  const steps = new Set(rows.map((row) => row.step));
  return recorded.filter((step) => steps.has(step));
});

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
        <${Slider}
          id="step" min="0" max=${Math.max(recorded.length - 1, 0)} step="1" value=${index}
          aria-valuetext=${t("run.at_step", { n: recorded[index] })}
          disabled=${recorded.length < 2} change=${goTo}
        />
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

function Follow() {
  const change = (isOn) =>
    show(isOn ? { follow: true, step: null } : { follow: null, step: stepShown.peek() });
  return html`<${Check} id="follow" label=${t("run.follow")} checked=${state.follow.value} change=${change} />`;
}
