// In which settings the drawn runs differ: one row per setting, one column per group of seeds.

import { runs } from "../core/data.js";
import { Table } from "../core/parts.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { Swatch } from "./chart_card.js";
import { groups } from "./chart_state.js";
import { settingText as shown } from "./format.js";

// [[key, [value of each group]]] of the settings that are not the same in all of them
function rowsOf(found) {
  const listed = new Map(runs.value.runs.map((each) => [each.id, each.settings ?? {}]));
  const settings = found.map(({ ids }) => listed.get(ids[0]) ?? {});
  const keys = [...new Set(settings.flatMap((each) => Object.keys(each)))];
  return keys
    .filter((key) => key !== "seed")
    .map((key) => [key, settings.map((each) => shown(each[key]))])
    .filter(([, values]) => new Set(values).size > 1);
}

export function Differences() {
  const found = groups.value ?? [];
  if (found.length < 2) return null;
  const rows = rowsOf(found);
  const head = [
    ["", t("run.setting")],
    ...found.map(({ key, look, label }) => [key, html`<${Swatch} look=${look} /> ${label}`]),
  ];
  return html`
    <details id="differences" class="fold panel">
      <summary>${t("runs.compared")}: ${rows.length || t("runs.compared_none")}</summary>
      ${
        rows.length
          ? html`<${Table} head=${head}>
              ${rows.map(
                ([key, values]) => html`<tr key=${key}>
                  <th scope="row">${key}</th>
                  ${values.map((value, i) => html`<td key=${found[i].key}>${value}</td>`)}
                </tr>`,
              )}
            </${Table}>`
          : null
      }
    </details>
  `;
}
