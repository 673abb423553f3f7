// All runs of a folder: a table, and the chosen ones laid over each other in the charts.

import { runs } from "../core/data.js";
import { Loaded, Panel, SearchBox } from "../core/parts.js";
import { t } from "../core/text.js";
import { html, useSignal } from "../vendor/preact.js";
import { groups } from "./chart_state.js";
import { ChartsPanel } from "./charts_panel.js";
import { Differences } from "./differences.js";
import { RunsTable } from "./runs_table.js";

export function RunsView() {
  return html`<${Loaded} from=${runs}>
    ${(found) => html`
      <${List} found=${found} />
      <${Differences} />
      ${
        groups.value?.some(({ ids }) => ids.length > 1)
          ? html`<p class="hint band-rule">${t("runs.band")}</p>`
          : null
      }
      <${ChartsPanel} />
    `}
  </${Loaded}>`;
}

function List({ found }) {
  const search = useSignal("");
  const wanted = search.value.trim().toLowerCase();
  const fits = (each) =>
    `${each.name} ${each.status} ${JSON.stringify(each.settings ?? {})}`
      .toLowerCase()
      .includes(wanted);
  const box = html`<${SearchBox} id="runs-search" label=${t("runs.search")} search=${search} />`;
  const title = t("runs.title", { n: found.runs.length, folder: found.folder });
  return html`
    <${Panel} id="runs" title=${title} bar=${box}>
      <${RunsTable} rows=${found.runs.filter(fits)} now=${found.now} />
    </${Panel}>
  `;
}
