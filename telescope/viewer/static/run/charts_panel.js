// All charts of the shown runs.

import { chartRuns, metricError, metrics } from "../core/data.js";
import { Trouble } from "../core/parts.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { ChartCard } from "./chart_card.js";
import { charts, models } from "./chart_state.js";
import { ChartTools } from "./chart_tools.js";

export function ChartsPanel() {
  const ids = chartRuns.value;
  const isLoaded = ids.some((id) => metrics.value[id]);
  const errors = ids.map(metricError).filter((error) => error !== null);
  if (!isLoaded) {
    if (errors.length) return html`<${Trouble} error=${errors[0]} />`;
    return ids.length ? html`<p class="quiet" role="status">${t("page.loading")}</p>` : null;
  }
  const drawn = charts.value.filter((chart) => models.value.has(chart.id));
  return html`
    <section id="charts" aria-label=${t("run.charts")}>
      <${ChartTools} />
      ${drawn.length ? null : html`<p class="quiet">${t("run.no_metrics")}</p>`}
      <div class="charts">
        ${drawn.map((chart) => html`<${ChartCard} key=${chart.id} chart=${chart} />`)}
      </div>
    </section>
  `;
}
