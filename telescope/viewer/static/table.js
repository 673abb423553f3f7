// The fence picture as a table: for screen readers, and for whoever wants numbers.

import { $, el, groupOf, hex, num, visible } from "./tools.js";
import { texts } from "./state.js";
import { viewOf } from "./whatif.js";
import { badges, shownToken } from "./choice.js";

const MOST_ROWS = 300;
const TABLE_COLUMNS = [
  "values",
  "token_level_rewards",
  "deltas",
  "advantages",
  "returns",
  "whitened",
  "kl",
  "ratio",
];
const UNSIGNED = ["values", "ratio"];

function tableRow(sample, t) {
  const { columns } = viewOf(sample);
  const group = groupOf(sample, t);
  const isSplit = group.to - group.from > 1;
  const bytes = isSplit ? ` [${hex(sample.token_bytes[t])}]` : "";
  const cell = (name) => {
    const number = num(columns[name]?.[t], { sign: !UNSIGNED.includes(name) });
    return el("td", { "data-column": name }, sample.mask[t] ? number : "–");
  };
  return el(
    "tr",
    { "data-sample": sample.position, "data-token": t },
    el("th", { scope: "row" }, String(t)),
    el("td", {}, visible(group.text, 24) + bytes),
    ...TABLE_COLUMNS.map(cell),
    el("td", {}, badges(sample, t)),
  );
}

function tableBody(sample) {
  const T = texts();
  const body = el("tbody", {});
  const count = Math.min(sample.token_bytes.length, MOST_ROWS);
  for (let t = 0; t < count; t++) body.append(tableRow(sample, t));
  if (sample.length <= MOST_ROWS) {
    const value = el("td", {}, num(sample.bootstrap ?? 0));
    body.append(el("tr", {}, el("th", { scope: "row" }, T.end), el("td", {}, ""), value));
  }
  return body;
}

// What the table was made from: walking along a sample only moves its mark.
let madeFrom = { columns: null, rule: null };

export function drawTable() {
  const T = texts();
  const table = $("table");
  const { sample, token } = shownToken();
  const columns = sample ? viewOf(sample).columns : null;
  if (madeFrom.columns !== columns || madeFrom.rule !== T.rule) {
    madeFrom = { columns, rule: T.rule };
    table.replaceChildren();
    if (!sample) return;
    const heads = ["i", "token", `V(s_i) ${T.before}`];
    heads.push("r_i", "δ_i", "A_i", "R_i", "Â_i", "KL_i", "ρ_i", "");
    const cells = heads.map((head) => el("th", { scope: "col" }, head));
    table.append(el("caption", {}, T.rule), el("thead", {}, el("tr", {}, ...cells)));
    table.append(tableBody(sample));
  }
  table.querySelector("tr.pinned")?.classList.remove("pinned");
  table.querySelector(`tr[data-token="${token}"]`)?.classList.add("pinned");
}
