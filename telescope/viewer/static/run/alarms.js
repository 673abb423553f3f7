// What looked wrong during training, and where. A click opens the answers of that step.

import { lang, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { alarms, openStep } from "./chart_state.js";

const SHOWN = 5;

export function Alarms() {
  const found = alarms.value;
  if (!found.length) return null;
  const newest = found.slice(-SHOWN).reverse();
  return html`
    <section id="alarms" class="alarms" aria-label=${t("run.alarms", { n: found.length })}>
      <h2><i aria-hidden="true">▼</i> ${t("run.alarms", { n: found.length })}</h2>
      <ul>
        ${newest.map(
          (alarm) => html`
            <li key=${`${alarm.step} ${alarm.id}`}>
              <button type="button" class="link" onClick=${() => openStep(alarm.step)}>
                ${t("run.at_step", { n: alarm.step })}
              </button>
              ${alarm[`text_${lang.value}`] ?? alarm.id}
            </li>
          `,
        )}
      </ul>
    </section>
  `;
}
