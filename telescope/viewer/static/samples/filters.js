// The filters above the table: search, what the rows have, score, group, prompt.

import { sampleShown } from "../core/data.js";
import { Toggle, Trouble } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import {
  clearFilters,
  FILTERS,
  isFiltered,
  search,
  toggleFilter,
  togglePrompt,
} from "./choose_rows.js";
import { hasGroups } from "./table_columns.js";

// How many rows a filter would leave; one that leaves none or all is not offered.
function Pills({ rows }) {
  const on = state.filter.value ?? [];
  return Object.entries(FILTERS).map(([name, keeps]) => {
    const n = rows.filter(keeps).length;
    const pressed = on.includes(name);
    if (!pressed && (n === 0 || n === rows.length)) return null;
    return html`
      <${Toggle} key=${name} class="pill" data-filter=${name} isOn=${pressed} press=${() => toggleFilter(name)}>
        ${t(`samples.filter.${name}`)} <span class="count">${n}</span>
      </${Toggle}>
    `;
  });
}

function NumberField({ id, label, value, change, step = "any" }) {
  const onChange = (event) => {
    const text = event.target.value.trim();
    const x = Number(text);
    change(text !== "" && Number.isFinite(x) ? x : null);
  };
  return html`
    <label class="field">
      ${label}
      <input id=${id} type="number" step=${step} value=${value ?? ""} onChange=${onChange} />
    </label>
  `;
}

export function Filters({ rows }) {
  const row = rows.find((each) => each.position === sampleShown.value);
  const isOne = state.filter.value?.includes("prompt") ?? false;
  const hasScores = new Set(rows.map((each) => each.score)).size > 2;
  const find = (event) => go({ search: event.target.value.slice(0, 200) }, { replace: true });
  const clearSearch = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    go({ search: "" });
  };
  return html`
    <div class="filters" role="group" aria-label=${t("samples.filters")}>
      <input
        id="search" type="search" maxlength="200" value=${state.search.value}
        placeholder=${t("samples.search")} aria-label=${t("samples.search")}
        onInput=${find} onKeyDown=${clearSearch}
      />
      <${Pills} rows=${rows} />
      <${Toggle} class="pill" data-filter="prompt" isOn=${isOne} press=${() => togglePrompt(row)}>
        ${t("samples.filter.prompt")}
      </${Toggle}>
      ${
        hasScores || state.low.value !== null || state.high.value !== null
          ? html`
              <${NumberField} id="score-low" label=${t("samples.low")} value=${state.low.value}
                change=${(low) => go({ low })} />
              <${NumberField} id="score-high" label=${t("samples.high")} value=${state.high.value}
                change=${(high) => go({ high })} />
            `
          : null
      }
      ${
        hasGroups(rows)
          ? html`<${NumberField} id="group" label=${t("samples.group")} step="1" value=${state.group.value}
              change=${(group) => go({ group })} />`
          : null
      }
      ${
        isFiltered.value
          ? html`<button id="clear" type="button" onClick=${clearFilters}>${t("samples.clear")}</button>`
          : null
      }
    </div>
    ${search.error ? html`<${Trouble} error=${search.error} retry=${search.reload} />` : null}
  `;
}
