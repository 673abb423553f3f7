// The chosen token under a what-if: recorded and now, side by side.

import { has } from "../core/number.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { figure } from "./figure.js";
import { symbolOf, viewOf } from "./view.js";

const ROWS = ["values", "token_level_rewards", "deltas", "advantages", "returns", "whitened"];
const UNSIGNED = ["values", "returns"];

export function WhatIfTerms({ sample, token }) {
  const { columns } = viewOf(sample);
  const rows = ROWS.filter((name) => has(columns[name]?.[token]));
  const number = (column, name) =>
    figure(column?.[token], { sign: !UNSIGNED.includes(name), digits: 5 });
  return html`
    <div class="note if" id="if">
      <table class="numbers">
        <thead>
          <tr>
            <th></th>
            <th scope="col">${t("token.recorded")}</th>
            <th scope="col">${t("token.now")}</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            (name) => html`
              <tr key=${name} data-column=${name}>
                <th scope="row">${symbolOf(name)}</th>
                <td class="recorded">${number(sample.columns[name], name)}</td>
                <td>${number(columns[name], name)}</td>
              </tr>
            `,
          )}
        </tbody>
      </table>
    </div>
  `;
}
