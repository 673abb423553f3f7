// Whether the page is up to date, always visible.

import { run } from "../core/data.js";
import { contact, isLive } from "../core/source.js";
import { lang, t } from "../core/text.js";
import { html, signal } from "../vendor/preact.js";
import { time } from "./format.js";

const SLOW = 10; // seconds without an answer that are worth a warning

const now = signal(Date.now() / 1000);
if (isLive) {
  setInterval(() => {
    now.value = Date.now() / 1000;
  }, 1000);
}

export function Liveness() {
  if (!isLive) return html`<${Saved} />`;
  const { at, ok } = contact.value;
  const seconds = time(now.value - at / 1000);
  if (ok) {
    const isLate = now.value - at / 1000 > SLOW;
    return html`<span id="liveness" class=${`live${isLate ? " late" : ""}`}>
      <i aria-hidden="true">${isLate ? "○" : "●"}</i> ${t("page.updated", { ago: seconds })}
    </span>`;
  }
  return html`<span id="liveness" class="live gone" role="alert">
    <i aria-hidden="true">✕</i> ${t("page.unreachable")}
    <span class="since">${t("page.since", { ago: seconds })}</span>
  </span>`;
}

// A report says what it holds of the run, and how that was chosen.
function Saved() {
  const held = run.value?.recorded;
  if (!held) return html`<span id="liveness" class="live saved">${t("page.saved")}</span>`;
  return html`<details id="liveness" class="live saved">
    <summary>${t("page.saved")} ${t("page.saved_of", held)}</summary>
    <p>${held[`how_${lang.value}`]}</p>
  </details>`;
}
