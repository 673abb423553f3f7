// One run: how it does, its settings, its charts.

import { run, runId, shownRuns } from "../core/data.js";
import { Loaded } from "../core/parts.js";
import { go, listed, without } from "../core/state.js";
import { lang, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { Alarms } from "./alarms.js";
import { groups } from "./chart_state.js";
import { ChartsPanel } from "./charts_panel.js";
import { Evaluated } from "./evaluated.js";
import { Settings } from "./settings.js";
import { Summary } from "./summary.js";
import { Task } from "./task.js";
import { ValuePaths } from "./value_paths.js";

export function RunView() {
  if (!run.value) return html`<${Loaded} from=${run}>${() => null}</${Loaded}>`;
  return html`
    ${run.value.status === "deleted" ? html`<${Deleted} />` : null}
    ${run.value.status === "empty" ? html`<p class="notice">${t("run.empty")}</p>` : null}
    <${Damage} />
    <div class="panel">
      <${Summary} />
      <${Task} />
      <${Settings} />
    </div>
    <${Alarms} />
    <${Overlay} />
    <${ChartsPanel} />
    <${ValuePaths} />
    <${Evaluated} />
  `;
}

function Deleted() {
  return html`<p id="deleted" class="notice bad" role="alert">
    <b>${t("run.deleted")}</b> ${t("run.deleted_more")}
  </p>`;
}

// Files that cannot be read: what the page shows is without them.
function Damage() {
  const lines = run.value.damage ?? [];
  return lines.map(
    (line) =>
      html`<p key=${line.en} class="notice bad damage" role="alert">${line[lang.value]}</p>`,
  );
}

// Runs that are laid over this one; a click takes one away.
function Overlay() {
  const others = shownRuns.value.filter((id) => id !== runId.value);
  if (!others.length) return null;
  return html`<p id="overlay" class="tools">
    ${t("runs.over")}
    ${others.map(
      (
        id,
      ) => html`<button key=${id} type="button" class="chip-button" onClick=${() => go({ with: listed(without(others, id)) })}>
        ${id} <span aria-hidden="true">×</span>
      </button>`,
    )}
    ${
      groups.value?.some(({ ids }) => ids.length > 1)
        ? html`<span class="hint">${t("runs.band")}</span>`
        : null
    }
  </p>`;
}
