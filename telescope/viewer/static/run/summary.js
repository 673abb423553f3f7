// How the run is doing: status, progress, time left, accuracy.

import { run } from "../core/data.js";
import { has } from "../core/number.js";
import { isLive } from "../core/source.js";
import { isKid, lang, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { shownValue, time } from "./format.js";

const SIGNS = { running: "●", finished: "✓", stopped: "■", silent: "…", empty: "○", deleted: "✕" };

// The state of a run in words, with a sign, so that colour is not needed.
export function Status({ status, silentFor = null }) {
  const said =
    status === "silent" && has(silentFor)
      ? t("run.status.silent_for", { time: time(silentFor) })
      : t(`run.status.${status}`);
  return html`<span class=${`status ${status}`}>
    <i aria-hidden="true">${SIGNS[status] ?? "?"}</i> ${said}
  </span>`;
}

export function Summary() {
  const found = run.value;
  return html`
    <section id="summary" class="summary" aria-label=${t("run.summary")}>
      <div class="summary-name">
        <h2>${found.name}</h2>
        <${Status} status=${found.status} silentFor=${found.silent_for} />
        <${Written} found=${found} />
      </div>
      <dl class="figures">
        <${Progress} found=${found} />
        <${Accuracy} accuracy=${found.accuracy} />
        <${Figure} id="eta" label=${t("run.eta")} value=${timeLeft(found)} />
        <${Figure}
          id="pace"
          label=${t("run.pace")}
          value=${has(found.seconds_per_step) ? shownValue(found.seconds_per_step, "seconds") : "–"}
        />
      </dl>
    </section>
  `;
}

function timeLeft(found) {
  if (found.status === "finished") return t("run.done");
  return has(found.eta_s) ? time(found.eta_s) : "–";
}

// When the run last wrote something, by the server's clock; in a report, the day and time.
function Written({ found }) {
  if (!has(found.updated)) return null;
  const date = new Date(1000 * found.updated);
  const said = isLive
    ? t("run.written", { ago: time(found.now - found.updated) })
    : t("run.written_at", { date: date.toLocaleString(lang.value) });
  return html`<span class="quiet" title=${date.toLocaleString(lang.value)}>${said}</span>`;
}

function Figure({ id, label, value, note = null }) {
  return html`<div class="figure" id=${`figure-${id}`}>
    <dt>${label}</dt>
    <dd><b>${value}</b> ${note ? html`<small>${note}</small>` : null}</dd>
  </div>`;
}

function Progress({ found }) {
  const { step, total_steps: total } = found;
  const note = has(total) ? t("run.of_steps", { n: total }) : null;
  return html`<div class="figure wide" id="figure-step">
    <dt>${t("run.step")}</dt>
    <dd>
      <b>${step ?? "–"}</b> ${note ? html`<small>${note}</small>` : null}
      ${
        has(total) && total > 0
          ? html`<progress max=${total} value=${step ?? 0} aria-label=${t("run.progress")}></progress>`
          : null
      }
    </dd>
  </div>`;
}

function Accuracy({ accuracy }) {
  if (!accuracy) return html`<${Figure} id="accuracy" label=${t("run.accuracy")} value="–" />`;
  const [start, before] = accuracy.before;
  const [, current] = accuracy.now;
  const [at, best] = accuracy.best;
  const note =
    best > current
      ? t("run.best", { value: shownValue(best, "share"), n: at })
      : isKid.value
        ? null
        : accuracy.metric;
  const isOne = accuracy.now[0] === start;
  const value = isOne
    ? shownValue(current, "share")
    : `${shownValue(before, "share")} → ${shownValue(current, "share")}`;
  return html`<${Figure} id="accuracy" label=${t("run.accuracy")} value=${value} note=${note} />`;
}
