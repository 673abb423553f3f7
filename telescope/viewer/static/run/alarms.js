// What looks wrong in training, since when, and what to try. A click opens the answers there.

import { go } from "../core/state.js";
import { isKid, lang, t } from "../core/text.js";
import { ofAllPrompts } from "../samples/choose_rows.js";
import { html, useState } from "../vendor/preact.js";
import { alarms } from "./chart_state.js";

const SHOWN = 4;

export function Alarms() {
  const [isWhole, setWhole] = useState(false);
  const found = alarms.value;
  if (!found.length) return null;
  const shown = isWhole ? found : found.slice(0, SHOWN);
  const more = found.length - shown.length;
  return html`
    <section id="alarms" class="alarms" aria-label=${t("run.alarms", { n: found.length })}>
      <h2><i aria-hidden="true">▼</i> ${t("run.alarms", { n: found.length })}</h2>
      <ul>
        ${shown.map((alarm) => html`<${Alarm} key=${alarm.id} alarm=${alarm} />`)}
      </ul>
      ${
        more > 0
          ? html`<button type="button" class="link" onClick=${() => setWhole(true)}>
              ${t("run.alarms.more", { n: more })}
            </button>`
          : null
      }
    </section>
  `;
}

// Where it can be seen, in the address that is shown now.
function open(href) {
  const place = new URLSearchParams(href.replace(/^#/, ""));
  const number = (name) => (place.has(name) ? Number(place.get(name)) : null);
  const at = { step: number("step"), sample: number("sample"), token: number("token") };
  go({ view: "samples", ...at, ...ofAllPrompts(), follow: null });
}

function Alarm({ alarm }) {
  const { severity, since, href } = alarm;
  return html`
    <li data-alarm=${alarm.id} data-severity=${severity}>
      <b class=${`severity ${severity}`}>${t(`run.severity.${severity}`)}</b>${" "}
      <button type="button" class="link" onClick=${() => open(href)}>
        ${t("run.since", { n: since })}
      </button>${" "}
      ${isKid.value ? t("run.alarm.kid") : alarm[`what_${lang.value}`]}
      ${isKid.value ? null : html`<div class="quiet remedy">${alarm[`remedy_${lang.value}`]}</div>`}
    </li>
  `;
}
