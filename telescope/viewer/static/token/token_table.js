// The fence picture as a table: for screen readers, and for whoever wants numbers.

import { t } from "../core/text.js";
import { groups, hex, visible } from "../core/token_text.js";
import { html, useEffect, useMemo, useState } from "../vendor/preact.js";
import { figureOf } from "./figure.js";
import { badges, symbolOf } from "./view.js";

const MOST_ROWS = 300;
const COLUMNS = [
  "values",
  "token_level_rewards",
  "deltas",
  "advantages",
  "returns",
  "whitened",
  "kl",
  "ratio",
  "entropy",
];
const REST = 120; // ms
const UNSIGNED = ["values", "ratio", "entropy"];

function cellOf(sample, columns, name, i) {
  const number = figureOf(name, columns[name]?.[i], { sign: !UNSIGNED.includes(name) });
  return html`<td data-column=${name}>${sample.mask[i] ? number : "–"}</td>`;
}

function rowOf(sample, columns, shown, { group, i, token }) {
  const isSplit = group.to - group.from > 1;
  const bytes = isSplit ? ` [${hex(sample.token_bytes[i])}]` : "";
  return html`
    <tr key=${i} data-i=${i} class=${i === token ? "pinned" : ""}>
      <th scope="row">${i}</th>
      <td>${visible(group.text, 24) + bytes}</td>
      ${shown.map((name) => cellOf(sample, columns, name, i))}
      <td>${badges(sample, columns, i)}</td>
    </tr>
  `;
}

// Around the chosen token, where an answer is long.
function rangeOf(length, token) {
  if (length <= MOST_ROWS) return [0, length];
  const from = Math.max(0, Math.min(length - MOST_ROWS, (token ?? 0) - MOST_ROWS / 2));
  const even = Math.floor(from / 50) * 50; // so that a step along the tokens changes little
  return [even, Math.min(length, even + MOST_ROWS + 50)];
}

// While only screen readers have the table, it waits until the numbers rest: a drag stays smooth.
export function TokenTable({ sample, token, columns, isShown }) {
  const now = { sample, token, columns };
  const parts = [sample, token, columns.advantages, columns.whitened];
  const [settled, setSettled] = useState(now);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(now), REST);
    return () => clearTimeout(timer);
  }, parts);
  const shown = isShown ? now : settled;
  return useMemo(() => html`<${Table} ...${shown} />`, [isShown, ...(isShown ? parts : [settled])]);
}

function Table({ sample, token, columns }) {
  const shown = COLUMNS.filter((name) => columns[name]?.length);
  const [from, to] = rangeOf(sample.token_bytes.length, token);
  const rows = groups(sample).flatMap((group) =>
    sample.token_bytes
      .slice(group.from, group.to)
      .map((_, k) => ({ group, i: group.from + k, token })),
  );
  const end = to === sample.length && shown.includes("values");
  return html`
    <table id="table" class="numbers">
      <caption>${t("token.rule")}</caption>
      <thead>
        <tr>
          <th scope="col">i</th>
          <th scope="col">token</th>
          ${shown.map((name) => html`<th scope="col">${headOf(name)}</th>`)}
          <th scope="col"></th>
        </tr>
      </thead>
      <tbody>
        ${rows.slice(from, to).map((row) => rowOf(sample, columns, shown, row))}
        ${
          end
            ? html`<tr><th scope="row">${t("token.end")}</th><td></td>
                <td>${figureOf("values", sample.bootstrap ?? 0)}</td></tr>`
            : null
        }
      </tbody>
    </table>
  `;
}

const headOf = (name) =>
  name === "values" ? `${symbolOf(name)} ${t("token.before")}` : symbolOf(name);
