// Which training step is shown, and whether the page follows a run that goes on.

import { run, step, stepShown } from "../core/data.js";
import { isLive } from "../core/source.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { stops } from "./choose_rows.js";

// Another step keeps the sample and the token.
const show = (chosen, options) => go({ step: chosen, follow: null }, options);

export function StepBar() {
  const list = stops.value;
  const at = list.indexOf(stepShown.value);
  const last = list.length - 1;
  const total = run.value?.ledger?.length ?? 0;
  const follow = (event) =>
    go(
      event.target.checked
        ? { follow: true, step: null }
        : { follow: null, step: stepShown.peek() },
    );
  return html`
    <div class="scrub" role="group" aria-label=${t("samples.step")} aria-busy=${step.loading ? "true" : "false"}>
      <label for="step">${t("samples.step")}</label>
      <button
        id="earlier" type="button" aria-label=${t("samples.earlier")}
        disabled=${at <= 0} onClick=${() => show(list[at - 1])}
      >◀</button>
      <input
        id="step" type="range" min="0" max=${Math.max(last, 0)} value=${Math.max(at, 0)}
        aria-valuetext=${String(stepShown.value ?? "")}
        onInput=${(event) => show(list[Number(event.target.value)], { replace: true })}
      />
      <button
        id="later" type="button" aria-label=${t("samples.later")}
        disabled=${at >= last} onClick=${() => show(list[at + 1])}
      >▶</button>
      <output id="step-now">${stepShown.value ?? "–"}</output>
      <span class="quiet">
        ${t("samples.stops", { at: at + 1, n: list.length })}
        ${list.length < total ? ` ${t("samples.stops.prompt")}` : ""}
      </span>
      ${
        isLive
          ? html`<label class="field">
              <input id="follow" type="checkbox" checked=${state.follow.value === true} onChange=${follow} />
              ${t("samples.follow")}
            </label>`
          : null
      }
    </div>
  `;
}
