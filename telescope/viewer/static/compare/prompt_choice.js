// Which prompt is compared. Those that come back at several steps are offered first.

import { pathIn, sampleShown } from "../core/data.js";
import { get } from "../core/source.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { oneLine } from "../core/token_text.js";
import { html } from "../vendor/preact.js";
import { useAnswer } from "./loaded.js";

// The rows of a step by prompt, each prompt once: [{key, user, rows}].
function promptsOf(index) {
  const found = new Map();
  for (const row of index) {
    const known = found.get(row.prompt_key);
    if (known) known.rows.push(row);
    else found.set(row.prompt_key, { key: row.prompt_key, user: row.user, rows: [row] });
  }
  return [...found.values()];
}

// The address's prompt, else that of the sample that is shown. `recurring`: prompts that come back,
// most steps first. Unless a sample was chosen whose prompt is among them, the first tells most.
export function promptShown(index, recurring = []) {
  if (state.prompt.value !== null) return state.prompt.value;
  const own = index.find((row) => row.position === sampleShown.value)?.prompt_key ?? null;
  const isChosen = state.sample.value !== null && recurring.some(({ key }) => key === own);
  return isChosen ? own : (recurring[0]?.key ?? own);
}

// The prompts that several steps recorded, with how many; null: not known yet, or not asked for.
export function useRecurring(isWanted = true) {
  const { value, error } = useAnswer(isWanted ? pathIn("/prompts") : null, get);
  return error ? [] : (value?.prompts ?? null);
}

function Choices({ prompts, shownKey, shared = null, counts = new Map() }) {
  return prompts.map(({ key, user }) => {
    const mark = shared?.has(key) ? "● " : "";
    const n = counts.get(key);
    const times = n ? t("compare.times", { n }) : "";
    return html`
      <option key=${key} value=${key} selected=${key === shownKey}>
        ${mark}${times}${oneLine(user, 90)}
      </option>
    `;
  });
}

// `anywhere`: the prompts of all steps that come back, as `useRecurring` gave them; without it only
// those of this step are offered. Those that several steps recorded come first.
export function PromptChoice({ index, shared = null, anywhere = null }) {
  const asked = useRecurring(anywhere === null);
  const recurring = anywhere ?? asked ?? [];
  const counts = new Map(recurring.map(({ key, steps }) => [key, steps]));
  const here = promptsOf(index);
  const keysHere = new Set(here.map(({ key }) => key));
  const several = anywhere !== null ? recurring : recurring.filter(({ key }) => keysHere.has(key));
  const once = here.filter(({ key }) => !counts.has(key));
  const shownKey = promptShown(index, anywhere ?? []);
  const isListed = [...several, ...once].some(({ key }) => key === shownKey);
  const part = (label, prompts) =>
    prompts.length
      ? html`<optgroup label=${label}><${Choices} ...${{ prompts, shownKey, shared, counts }} /></optgroup>`
      : null;
  return html`
    <label class="field wide" for="prompt-choice">
      <span>${t("compare.choose")}</span>
      <select
        id="prompt-choice" value=${shownKey} onChange=${(event) => go({ prompt: event.target.value })}
      >
        ${isListed ? null : html`<option value=${shownKey} selected>…</option>`}
        ${part(t("compare.several"), several)}
        ${part(t("compare.once"), once)}
      </select>
    </label>
  `;
}
