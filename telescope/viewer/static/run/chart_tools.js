// The bar over the charts: smoothing, log scale, zoom, and a picker of any other metric.

import { Check, SearchBox, Slider } from "../core/parts.js";
import { go, listed, state, without } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { html, useEffect, useRef, useSignal } from "../vendor/preact.js";
import { isOverview, names, setZoom, zoom } from "./chart_state.js";
import { otherMetrics } from "./charts.js";
import { meaningOf } from "./meanings.js";

export function ChartTools() {
  return html`
    <div class="tools" role="group" aria-label=${t("run.tools")}>
      <${Smoothing} />
      ${isKid.value ? null : html`<${Log} /><${Picker} />`}
      <${Zoom} />
    </div>
  `;
}

function Smoothing() {
  const change = (smooth, options) => go({ smooth }, options);
  return html`<label class="tool">
    ${t("run.smooth")}
    <${Slider}
      id="smooth" min="0" max="0.99" step="0.01" value=${state.smooth.value} change=${change}
    />
    ${isKid.value ? null : html`<output>${state.smooth.value.toFixed(2)}</output>`}
  </label>`;
}

function Log() {
  const change = (isOn) => go({ log: isOn || null });
  return html`<${Check} id="log" label=${t("run.log")} checked=${state.log.value} change=${change} />`;
}

function Zoom() {
  if (!zoom.value)
    return html`<span class="hint">${t(isOverview.value ? "runs.zoom_hint" : "run.zoom_hint")}</span>`;
  const [from, to] = zoom.value;
  return html`<button id="unzoom" type="button" class="chip-button" onClick=${() => setZoom(null)}>
    ${t("run.zoomed", { from, to })} <span aria-hidden="true">×</span>
  </button>`;
}

// Any metric by its name, with a search.
function Picker() {
  const node = useRef(null);
  const search = useSignal("");
  useEffect(() => {
    const close = (event) => {
      if (!node.current?.contains(event.target)) node.current?.removeAttribute("open");
    };
    document.addEventListener("pointerdown", close);
    return () => document.removeEventListener("pointerdown", close);
  }, []);
  const others = otherMetrics(names.value);
  const wanted = search.value.trim().toLowerCase();
  const fits = (name) => `${name} ${meaningOf(name)}`.toLowerCase().includes(wanted);
  const found = others.filter(fits);
  const closeByKey = (event) => {
    if (event.key === "Escape") node.current.removeAttribute("open");
  };
  return html`
    <details id="picker" class="picker" ref=${node} onKeyDown=${closeByKey}>
      <summary>${t("run.pick", { n: others.length })}</summary>
      <div class="drop">
        <${SearchBox} label=${t("run.pick_search")} search=${search} />
        <ul>
          ${found.map((name) => html`<${Choice} key=${name} name=${name} />`)}
        </ul>
        ${found.length ? null : html`<p class="quiet">${t("run.pick_none")}</p>`}
      </div>
    </details>
  `;
}

function Choice({ name }) {
  const chosen = state.charts.value ?? [];
  const isOn = chosen.includes(name);
  const toggle = () => {
    go({ charts: listed(isOn ? without(chosen, name) : [...chosen, name]) });
  };
  return html`<li>
    <label>
      <input type="checkbox" data-metric=${name} checked=${isOn} onChange=${toggle} />
      <span><code>${name}</code><small>${meaningOf(name)}</small></span>
    </label>
  </li>`;
}
