// The prompt: the user's last turn open, earlier turns folded, the chat template behind a switch.

import { Toggle } from "../core/parts.js";
import { t } from "../core/text.js";
import { oneLine } from "../core/token_text.js";
import { html, useState } from "../vendor/preact.js";
import { running } from "./running_text.js";

const ROLES = new Set(["system", "user", "assistant", "tool"]);
const roleName = (role) => (ROLES.has(role) ? t(`reader.role.${role}`) : role);

function Turn({ role, text }) {
  return html`
    <div class=${`turn ${ROLES.has(role) ? role : "other"}`} data-role=${role}>
      <span class="role">${roleName(role)}</span>
      <div class="said" dir="auto">${running(text)}</div>
    </div>
  `;
}

// Earlier turns: instructions and examples.
function Earlier({ turns }) {
  if (!turns.length) return null;
  const roles = turns.map(({ role }) => roleName(role)).join(" · ");
  return html`
    <details class="earlier">
      <summary>
        ${t("reader.earlier", { n: turns.length })} <span class="quiet">${roles}: ${oneLine(turns[0].text, 60)}</span>
      </summary>
      ${turns.map((turn) => html`<${Turn} ...${turn} />`)}
    </details>
  `;
}

// Every part as it stands, the template's markup too.
function Raw({ parts }) {
  return html`
    <div class="said raw" dir="auto">
      ${parts.map(
        ({ role, text }) =>
          html`<span class=${role === "template" ? "markup" : ""}>${running(text)}</span>`,
      )}
    </div>
  `;
}

export function Prompt({ sample }) {
  const [raw, setRaw] = useState(false);
  const parts = sample.prompt_parts;
  const turns = parts.filter(({ role, text }) => role !== "template" && text.trim());
  const hasTemplate = turns.length < parts.length;
  const last = turns.findLastIndex(({ role }) => role === "user");
  const open = last < 0 ? turns.length - 1 : last;
  const spoken = html`
    <${Earlier} turns=${turns.slice(0, open)} />
    ${turns.slice(open).map((turn) => html`<${Turn} ...${turn} />`)}
  `;
  const markup = html`
    <${Toggle} id="template" class="small" isOn=${raw} press=${() => setRaw(!raw)}>
      ${t("reader.template")}
    </${Toggle}>
  `;
  return html`
    <div id="prompt" class="prompt">
      ${sample.prompt_cut ? html`<p class="quiet">${t("reader.prompt_cut", { n: sample.prompt_cut })}</p>` : null}
      ${raw ? html`<${Raw} parts=${parts} />` : spoken}
      ${hasTemplate ? markup : null}
    </div>
  `;
}
