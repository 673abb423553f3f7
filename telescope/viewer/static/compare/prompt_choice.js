// Which prompt is compared: one of the shown step's.

import { sampleShown } from "../core/data.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { oneLine } from "../core/token_text.js";
import { html } from "../vendor/preact.js";

// The rows of a step by prompt, each prompt once: [{key, user, rows}].
export function promptsOf(index) {
  const found = new Map();
  for (const row of index) {
    const known = found.get(row.prompt_key);
    if (known) known.rows.push(row);
    else found.set(row.prompt_key, { key: row.prompt_key, user: row.user, rows: [row] });
  }
  return [...found.values()];
}

// The address's prompt, else that of the sample that is shown.
export function promptShown(index) {
  if (state.prompt.value !== null) return state.prompt.value;
  return index.find((row) => row.position === sampleShown.value)?.prompt_key ?? null;
}

export function PromptChoice({ index, shared = null }) {
  const prompts = promptsOf(index);
  const key = promptShown(index);
  const isListed = prompts.some((prompt) => prompt.key === key);
  return html`
    <label class="field wide" for="prompt-choice">
      <span>${t("compare.choose")}</span>
      <select id="prompt-choice" value=${key} onChange=${(event) => go({ prompt: event.target.value })}>
        ${isListed ? null : html`<option value=${key} selected>…</option>`}
        ${prompts.map(
          (prompt) => html`
            <option key=${prompt.key} value=${prompt.key} selected=${prompt.key === key}>
              ${shared?.has(prompt.key) ? "● " : ""}${oneLine(prompt.user, 90)}
            </option>
          `,
        )}
      </select>
    </label>
  `;
}
