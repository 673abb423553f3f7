// One chart: its title, what it means, its legend with the values under the crosshair, the plot.

import { isPrinting } from "../core/colour.js";
import { go, listed, state, without } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { effect, html, useEffect, useRef, useSignal } from "../vendor/preact.js";
import {
  groups,
  here,
  marked,
  models,
  openStep,
  setZoom,
  stepToOpen,
  zoom,
} from "./chart_state.js";
import { shownValue } from "./format.js";
import { meaningOf } from "./meanings.js";
import { dashOf, LINES } from "./palette.js";
import { Plot } from "./plot.js";
import { firstOf } from "./series.js";

const HIGH = [190, 260]; // of a narrow and of a wide plot
const PRINTED_WIDE = 320;

export function ChartCard({ chart }) {
  const cursor = useSignal(null);
  const model = models.value.get(chart.id);
  return html`
    <figure class="chart" data-chart=${chart.id}>
      <figcaption>
        <div class="chart-head">
          <h3>${chart.extra ? html`<code>${chart.id}</code>` : t(`run.chart.${chart.id}`)}</h3>
          <${At} model=${model} cursor=${cursor} />
          ${chart.extra ? html`<${Remove} name=${chart.id} />` : null}
        </div>
        <p class="meaning"><${Meaning} chart=${chart} model=${model} /></p>
        <${Legend} model=${model} cursor=${cursor} />
      </figcaption>
      <${Canvas} id=${chart.id} label=${spoken(chart, model)} cursor=${cursor} />
    </figure>
  `;
}

// Charts of several runs draw one metric of each: its meaning is said, not that of the whole chart.
function Meaning({ chart, model }) {
  if (chart.extra) return meaningOf(chart.id);
  if (!groups.value) return t(`run.why.${chart.id}`);
  return html`<code>${model.metric}</code> ${meaningOf(model.metric)}`;
}

// What a screen reader says of the picture.
function spoken(chart, model) {
  const title = chart.extra ? chart.id : t(`run.chart.${chart.id}`);
  const ends = model.legend.map(({ label, values, last, unit }) =>
    t("run.from_to", {
      name: label,
      from: shownValue(firstOf(values), unit),
      to: shownValue(last, unit),
    }),
  );
  return `${title}: ${ends.join("; ")}`;
}

// Where the crosshair is, and what a click there opens.
function At({ model, cursor }) {
  const step = cursor.value === null ? null : model.steps[cursor.value];
  if (step === null || step === undefined) {
    return html`<span class="chart-at">
      ${model.linear ? `${t("run.linear")} · ` : null}<span class="last">${t("run.last")}</span>
    </span>`;
  }
  const opens = stepToOpen(step);
  return html`<span class="chart-at">
    ${t("run.at_step", { n: step })}
    ${opens === null ? null : html`<span class="opens">${t("run.opens", { n: opens })}</span>`}
  </span>`;
}

function Legend({ model, cursor }) {
  const at = cursor.value;
  const alone = model.legend.length === 1 && isKid.value;
  const isRoomy = model.legend.length === 1 || model.legend.some(({ low }) => low);
  return html`<ul class=${`chart-legend${isRoomy ? " roomy" : ""}`}>
    ${model.legend.map(
      (line) => html`
        <li key=${line.key} data-line=${line.key}>
          <${Swatch} look=${line.look} isArea=${model.series[0].kind === "area"} />
          ${alone ? null : html`<span class="name">${line.label}</span>`}
          <b>${shownValue(at === null ? line.last : line.values[at], line.unit)}</b>
          <${Details} line=${line} at=${at} />
        </li>
      `,
    )}
  </ul>`;
}

// The raw value beside a smoothed one; least and largest of a group, and how many runs it has.
function Details({ line, at }) {
  if (line.low && at === null) return null;
  if (line.low) {
    const range = `${shownValue(line.low[at], line.unit)} … ${shownValue(line.high[at], line.unit)}`;
    const count = line.count[at];
    const few = count !== null && count < line.total ? ` n=${count}` : "";
    return html`<span class="raw">${range}${few}</span>`;
  }
  if (!line.raw || at === null) return null;
  return html`<span class="raw">(${shownValue(line.raw[at], line.unit)})</span>`;
}

export function Swatch({ look, isArea = false }) {
  const style = { color: `var(--line-${look % LINES})` };
  if (isArea) return html`<i class="area" style=${style}></i>`;
  return html`<svg class="line-swatch" style=${style} width="22" height="8" aria-hidden="true">
    <line x1="0" x2="22" y1="4" y2="4" stroke-dasharray=${dashOf(look).join(" ")} />
  </svg>`;
}

function Remove({ name }) {
  return html`<button
    type="button"
    class="icon"
    aria-label=${t("run.remove", { name })}
    onClick=${() => go({ charts: listed(without(state.charts.value, name)) })}
  >
    ×
  </button>`;
}

function Canvas({ id, label, cursor }) {
  const box = useRef(null);
  const plot = useRef(null);

  useEffect(() => {
    const node = box.current;
    const wide = () => (isPrinting.value ? PRINTED_WIDE : Math.max(160, node.clientWidth));
    const high = () => Math.max(HIGH[0], Math.min(HIGH[1], Math.round(wide() * 0.42)));
    plot.current = new Plot(node, {
      cursor: (index) => {
        cursor.value = index;
      },
      choose: openStep,
      zoom: setZoom,
    });
    const stop = effect(() => {
      const model = models.value.get(id);
      if (!model) return;
      const marks = { here: here.value, alarms: marked.value };
      const whole = { ...model, ...marks, zoom: zoom.value, label: t("run.step_axis") };
      plot.current.show(whole, wide(), high());
    });
    const watcher = new ResizeObserver(() => plot.current.resize(wide(), high()));
    watcher.observe(node);
    return () => {
      watcher.disconnect();
      stop();
      plot.current.destroy();
    };
  }, [id]);

  const onKeyDown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) plot.current.move(by);
    else if (event.key === "Enter" && cursor.value !== null) {
      openStep(models.value.get(id).steps[cursor.value]);
    } else if (event.key === "Escape" && state.zoom.value) setZoom(null);
    else return;
    event.preventDefault();
  };

  return html`<div
    ref=${box}
    class="plot"
    role="img"
    tabindex="0"
    aria-label=${label}
    onKeyDown=${onKeyDown}
  ></div>`;
}
