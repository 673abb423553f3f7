// The columns of the samples' table.

import { has, num, percent } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { oneLine } from "../core/token_text.js";
import { figureOf, scoreOf } from "../token/figure.js";
import { html } from "../vendor/preact.js";

const MOST_PARTS = 4;

function verdictOf(row) {
  if (!has(row.score)) return scoreOf(row.score); // another trainer's run may have no scores
  return html`
    <span class=${row.right ? "right" : "wrong"} aria-label=${t(row.right ? "samples.right" : "samples.wrong")}>
      ${row.right ? "✓" : "✗"}
    </span>
    ${` ${scoreOf(row.score)}`}
  `;
}

function marksOf(row) {
  const marks = [];
  if (row.truncated) marks.push(["⋯", t("samples.truncated")]);
  if (row.tools > 0) marks.push([`🔧${row.tools}`, t("samples.tools", { n: row.tools })]);
  if (row.flipped > 0) marks.push([`⇅${row.flipped}`, t("samples.flips", { n: row.flipped })]);
  return marks.map(
    ([sign, said]) => html`<span key=${said} class="mark" title=${said}>${sign}</span>`,
  );
}

const number = (digits) => (row, name) => figureOf(name, row[name], { digits });

// name, cell, whether its first sort is downwards, how much room it needs to be shown
const COLUMNS = [
  { name: "position", cell: (row) => row.position },
  { name: "score", cell: verdictOf },
  { name: "length", cell: (row) => row.length, down: true, room: "some" },
  { name: "clip_fraction", cell: (row) => percent(row.clip_fraction), down: true, room: "more" },
  { name: "marks", cell: marksOf, down: true },
  { name: "v0", cell: number(2), down: true, room: "much", expert: true },
  { name: "max_abs_a", cell: number(2), down: true, room: "much", expert: true },
  { name: "group", cell: (row) => row.group, room: "some" },
  { name: "user", cell: (row) => oneLine(row.user), text: true },
  { name: "answer", cell: (row) => oneLine(row.answer), text: true, room: "much" },
];

const partColumn = (name) => ({
  name: `part:${name}`,
  label: oneLine(name, 16),
  cell: (row) => num(row.parts?.[name], { digits: 2 }),
  down: true,
  room: "more",
});

// Parts that say something besides the score.
function partNames(rows) {
  const names = new Set(rows.flatMap((row) => Object.keys(row.parts ?? {})));
  const says = (name) =>
    rows.some((row) => has(row.parts?.[name]) && row.parts[name] !== row.score);
  return [...names].filter(says).slice(0, MOST_PARTS);
}

// Whether several answers share a group.
export function hasGroups(rows) {
  const groups = rows.map((row) => row.group).filter(has);
  return new Set(groups).size < groups.length;
}

// The columns that these rows fill.
export function columnsOf(rows) {
  const isFilled = ({ name }) => {
    if (name === "v0" || name === "clip_fraction") return rows.some((row) => has(row[name]));
    if (name === "group") return hasGroups(rows);
    if (name === "marks") return rows.some((row) => row.truncated || row.tools || row.flipped);
    return true;
  };
  const shown = COLUMNS.filter((column) => isFilled(column) && !(column.expert && isKid.value));
  const parts = partNames(rows).map(partColumn);
  return shown.flatMap((column) => (column.name === "score" ? [column, ...parts] : [column]));
}

export const labelOf = (column) => column.label ?? t(`samples.${column.name}`);
