// The chosen token under a what-if: recorded and now side by side, and the arithmetic of now.

import { resource, sample as sampleThere } from "../core/data.js";
import { has } from "../core/number.js";
import { Trouble } from "../core/parts.js";
import { rested } from "../core/rest.js";
import { t } from "../core/text.js";
import { computed, html } from "../vendor/preact.js";
import { queryOf, tried } from "../whatif/tried.js";
import { tokenSeen } from "./chosen.js";
import { Equation } from "./equation.js";
import { figureOf } from "./figure.js";
import { remembered } from "./terms_data.js";
import { symbolOf } from "./view.js";

const ROWS = ["values", "token_level_rewards", "deltas", "advantages", "returns", "whitened"];
const UNSIGNED = ["values", "returns"];
const REST = 200; // ms without a change before Python is asked

// ---- the terms, once the slider and the pointer rest ----

const wanted = computed(() => {
  const now = tried.value;
  if (!now?.changed || tokenSeen.value === null) return null;
  const path = sampleThere.value?.path.replace(/\/samples\/(\d+)$/, "/whatif/samples/$1");
  return path ? `${path}/tokens/${tokenSeen.value}?${queryOf(now)}` : null;
});

const asked = rested(wanted, REST, (path) => path === null);

const terms = resource(() => asked.value, {
  ask: remembered,
  make: (answer, path) => ({ ...answer, path }),
});

function Terms() {
  const { value, error } = terms;
  const isCurrent = value?.path === wanted.value;
  if (error && !isCurrent) return html`<${Trouble} error=${error} retry=${terms.reload} />`;
  if (!value) return null;
  return html`
    <div class=${isCurrent ? "terms" : "terms old"}>
      ${value.traces.map((trace) => html`<${Equation} key=${trace.name} trace=${trace} />`)}
    </div>
  `;
}

// ---- two columns ----

export function WhatIfTerms({ sample, token, columns }) {
  const rows = ROWS.filter((name) => has(columns[name]?.[token]));
  const number = (column, name) =>
    figureOf(name, column?.[token], { sign: !UNSIGNED.includes(name), digits: 5 });
  return html`
    <div class="note if" id="if">
      <table class="numbers">
        <thead>
          <tr>
            <th></th>
            <th scope="col">${t("token.trained")}</th>
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
      <${Terms} />
    </div>
  `;
}
