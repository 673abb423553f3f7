// The table of a step's samples. Only the rows in sight are drawn, so that 512 stay quick.

import { sampleShown, step, stepShown } from "../core/data.js";
import { has } from "../core/number.js";
import { Panel } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { clearFilters, rowsShown, sortBy } from "./choose_rows.js";
import { Filters } from "./filters.js";
import { columnsOf, labelOf } from "./table_columns.js";

const ROW = 28; // px, as in the style sheet
const SPARE = 8; // rows drawn above and below what is in sight

const choose = (position, options) => go({ step: stepShown.peek(), sample: position }, options);

const classOf = ({ text, room }) => `${text ? "text" : ""} ${room ? `room-${room}` : ""}`;

function Head({ columns }) {
  const { sort, down } = state;
  const one = (column) => {
    const isSorted = sort.value === column.name;
    const direction = down.value ? "descending" : "ascending";
    return html`
      <th key=${column.name} scope="col" class=${classOf(column)} aria-sort=${isSorted ? direction : "none"}>
        <button type="button" data-sort=${column.name} onClick=${() => sortBy(column.name, column.down)}>
          ${labelOf(column)}${isSorted ? (down.value ? " ▼" : " ▲") : ""}
        </button>
      </th>
    `;
  };
  return html`<thead><tr>${columns.map(one)}</tr></thead>`;
}

function Row({ row, columns, isChosen, index }) {
  const verdict = row.right ? "right" : "wrong";
  const kind = `${has(row.score) ? verdict : "unscored"}${isChosen ? " chosen" : ""}`;
  return html`
    <tr
      id=${`row-${row.position}`} class=${kind} data-row=${row.position} aria-rowindex=${index + 2}
      aria-selected=${isChosen ? "true" : "false"} onClick=${() => choose(row.position)}
    >
      ${columns.map(
        (column) =>
          html`<td key=${column.name} data-column=${column.name} class=${classOf(column)}>${column.cell(row, column.name)}</td>`,
      )}
    </tr>
  `;
}

// An empty row as high as the rows that are not drawn.
const spacer = (rows) =>
  rows > 0
    ? html`<tr class="spacer" aria-hidden="true" style=${{ height: `${rows * ROW}px` }}></tr>`
    : null;

function useSight(box) {
  const [sight, setSight] = useState({ top: 0, height: 600 });
  useLayoutEffect(() => {
    const node = box.current;
    const look = () => setSight({ top: node.scrollTop, height: node.clientHeight });
    const watch = new ResizeObserver(look);
    watch.observe(node);
    node.addEventListener("scroll", look, { passive: true });
    return () => {
      watch.disconnect();
      node.removeEventListener("scroll", look);
    };
  }, []);
  return sight;
}

// Scrolls the table, not the page, so that a row is in sight.
function useRowInSight(box, index) {
  useLayoutEffect(() => {
    if (index < 0) return;
    const node = box.current;
    const top = index * ROW;
    const head = ROW;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + head + ROW > node.scrollTop + node.clientHeight) {
      node.scrollTop = top + head + ROW - node.clientHeight;
    }
  }, [index]);
}

function onKeyDown(event, rows, index) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("button")) return;
  const at = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (at !== undefined) {
    const next = rows[Math.max(0, Math.min(rows.length - 1, at))];
    if (next) choose(next.position, { replace: true });
  } else if (event.key === "Enter" && rows[index]) {
    choose(rows[index].position);
    document.getElementById("answer")?.focus();
  } else if (event.key === "Escape") clearFilters();
  else return;
  event.preventDefault();
}

export function SampleTable() {
  const box = useRef(null);
  const rows = rowsShown.value;
  const index = rows.findIndex((row) => row.position === sampleShown.value);
  const all = step.value?.index ?? [];
  const columns = useMemo(() => columnsOf(all), [all, state.kid.value]);
  const sight = useSight(box);
  useRowInSight(box, index);
  const from = Math.max(0, Math.floor(sight.top / ROW) - SPARE);
  const to = Math.min(rows.length, Math.ceil((sight.top + sight.height) / ROW) + SPARE);
  const count = html`<span id="samples-count" class="quiet">${t("samples.count", { n: rows.length, all: all.length })}</span>`;
  return html`
    <${Panel} id="samples" title=${t("samples.title")} bar=${count}>
      <${Filters} rows=${all} />
      <div
        id="table-box" class="table-box" ref=${box} tabindex="0" role="region"
        aria-label=${t("samples.title")} onKeyDown=${(event) => onKeyDown(event, rows, index)}
      >
        <table class="samples" role="grid" aria-rowcount=${rows.length + 1}>
          <${Head} columns=${columns} />
          <tbody>
            ${spacer(from)}
            ${rows.slice(from, to).map(
              (row, k) => html`
                <${Row}
                  key=${row.position} row=${row} columns=${columns} index=${from + k}
                  isChosen=${row.position === sampleShown.value}
                />
              `,
            )}
            ${spacer(rows.length - to)}
          </tbody>
        </table>
        ${rows.length ? null : html`<p class="quiet">${t("samples.none")}</p>`}
      </div>
    </${Panel}>
  `;
}
