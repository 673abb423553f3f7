// The run's settings, beside their defaults, folded.

import { run } from "../core/data.js";
import { Check, SearchBox, Table } from "../core/parts.js";
import { isKid, t } from "../core/text.js";
import { html, useSignal } from "../vendor/preact.js";
import { settingText as shown } from "./format.js";

export function Settings() {
  const isAll = useSignal(false);
  const search = useSignal("");
  const config = run.value?.config ?? [];
  if (!config.length || isKid.value) return null;
  const changed = config.filter((row) => row.changed);
  const wanted = search.value.trim().toLowerCase();
  const fits = (row) => `${row.key} ${shown(row.value)}`.toLowerCase().includes(wanted);
  const rows = (isAll.value || wanted ? config : changed).filter(fits);
  const head = [t("run.setting"), t("run.value"), t("run.default")].map((name) => [name, name]);
  const showAll = (isOn) => {
    isAll.value = isOn;
  };
  return html`
    <details id="settings" class="fold">
      <summary>${t("run.settings", { n: changed.length, all: config.length })}</summary>
      <div class="tools">
        <${SearchBox} label=${t("run.settings_search")} search=${search} />
        <${Check} label=${t("run.settings_all")} checked=${isAll.value} change=${showAll} />
      </div>
      <${Table} head=${head}>
        ${rows.map(
          (row) => html`
            <tr key=${row.key} class=${row.changed ? "changed" : ""}>
              <th scope="row">${row.key}</th>
              <td>${shown(row.value)}${row.changed ? html`<span class="sr"> ${t("run.changed")}</span>` : null}</td>
              <td class="quiet">${shown(row.default)}</td>
            </tr>
          `,
        )}
      </${Table}>
    </details>
  `;
}
