// The run's settings, beside their defaults, folded.

import { run } from "../core/data.js";
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
  return html`
    <details id="settings" class="fold">
      <summary>${t("run.settings", { n: changed.length, all: config.length })}</summary>
      <div class="tools">
        <input
          type="search"
          placeholder=${t("run.settings_search")}
          aria-label=${t("run.settings_search")}
          value=${search.value}
          onInput=${(event) => {
            search.value = event.target.value;
          }}
        />
        <label class="tool">
          <input
            type="checkbox"
            checked=${isAll.value}
            onChange=${(event) => {
              isAll.value = event.target.checked;
            }}
          />
          ${t("run.settings_all")}
        </label>
      </div>
      <div class="scroll">
        <table class="settings">
          <thead>
            <tr>
              <th scope="col">${t("run.setting")}</th>
              <th scope="col">${t("run.value")}</th>
              <th scope="col">${t("run.default")}</th>
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (row) => html`
                <tr key=${row.key} class=${row.changed ? "changed" : ""}>
                  <th scope="row">${row.key}</th>
                  <td>${shown(row.value)}${row.changed ? html`<span class="sr"> ${t("run.changed")}</span>` : null}</td>
                  <td class="quiet">${shown(row.default)}</td>
                </tr>
              `,
            )}
          </tbody>
        </table>
      </div>
    </details>
  `;
}
