// The whole answer at a glance: V as a line, Â as bars, and the window of the fence picture.

import { level } from "../core/colour.js";
import { has } from "../core/number.js";
import { t } from "../core/text.js";
import { lens, pin, tokenPanel, tokenSeen } from "../token/chosen.js";
import { figure } from "../token/figure.js";
import { symbolOf, viewOf } from "../token/view.js";
import { html, useRef } from "../vendor/preact.js";

const WIDE = 1000;
const HIGH = 74;
const ZERO = 56; // of the bars
const BAR = 16;
const ROOF = 6;
const FLOOR = 36; // of the line

// The smallest and the largest V, with 0 inside; null without any.
function rangeOf(values, mask) {
  const seen = values.filter((v, i) => mask[i] && has(v));
  if (!seen.length) return null;
  const low = Math.min(0, ...seen);
  return { low, high: Math.max(...seen, low + 1e-6) };
}

function lineOf(values, mask, { x, range: { low, high } }) {
  const y = (v) => FLOOR - ((v - low) / (high - low)) * (FLOOR - ROOF);
  let path = "";
  values.forEach((v, i) => {
    if (mask[i] && has(v)) path += `${path ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
  });
  return path;
}

// What the line and the bars are, with the line's highest and lowest number.
function Names({ range, quantity }) {
  const number = (v) => figure(v, { digits: 2 });
  return html`
    <div class="minimap-names">
      ${
        range
          ? html`<span class="value-name">${symbolOf("values")} <b>${number(range.high)}</b></span>
              <span class="quiet">${number(range.low)}</span>`
          : null
      }
      <span class="credit-name">${symbolOf(quantity)}</span>
    </div>
  `;
}

// The bars of one sign as one path.
function barsOf(column, mask, { x, wide, sign, quantity }) {
  let path = "";
  column.forEach((number, i) => {
    if (!mask[i] || !has(number) || number * sign <= 0) return;
    const height = Math.max(0.8, Math.abs(level(quantity, number)) * BAR);
    const left = (x(i) - wide / 2).toFixed(2);
    const top = sign > 0 ? ZERO - height : ZERO;
    path += `M${left} ${top.toFixed(1)}h${wide.toFixed(2)}v${height.toFixed(1)}h-${wide.toFixed(2)}Z`;
  });
  return path;
}

function Bars({ column, sample, quantity, x, wide, kind = "" }) {
  if (!column) return null;
  const one = (sign) => barsOf(column, sample.mask, { x, wide, sign, quantity });
  return html`
    <path class=${`plus ${kind}`} d=${one(1)} />
    <path class=${`minus ${kind}`} d=${one(-1)} />
  `;
}

const toolsOf = (sample, x, wide) =>
  sample.mask
    .map((m, i) =>
      m ? "" : `M${(x(i) - wide / 2).toFixed(2)} 2h${wide.toFixed(2)}v70h-${wide.toFixed(2)}Z`,
    )
    .join("");

export function Minimap({ sample }) {
  const box = useRef(null);
  const count = sample.token_ids.length;
  const wide = WIDE / Math.max(count, 1);
  const x = (i) => (i + 0.5) * wide;
  const { columns, changed } = viewOf(sample);
  const quantity = columns.whitened ? "whitened" : "advantages";
  const { from, to } = lens.value;
  const seen = tokenSeen.value;
  const tokenAt = (event) => {
    const { left, width } = box.current.getBoundingClientRect();
    const part = (event.clientX - left) / width;
    return Math.max(0, Math.min(count - 1, Math.floor(part * count)));
  };
  const drag = (event) => {
    if (event.buttons === 1) pin(tokenAt(event), { replace: true });
  };
  const range = columns.values ? rangeOf(columns.values, sample.mask) : null;
  return html`
    <div class="minimap-box">
      <${Names} range=${range} quantity=${quantity} />
      <svg
        id="minimap" class="minimap" ref=${box} viewBox=${`0 0 ${WIDE} ${HIGH}`}
        preserveAspectRatio="none" role="slider" tabindex="0" aria-label=${t("reader.minimap")}
        aria-valuemin="0" aria-valuemax=${count - 1} aria-valuenow=${seen ?? 0}
        onKeyDown=${tokenPanel.onKeyDown}
        onPointerDown=${(event) => pin(tokenAt(event))}
        onPointerMove=${drag}
      >
        <rect class="lens" x=${from * wide} width=${(to - from) * wide} y="1" height=${HIGH - 2} rx="2" />
        <path class="tools" d=${toolsOf(sample, x, wide)} />
        <line class="zero" x1="0" x2=${WIDE} y1=${ZERO} y2=${ZERO} />
        ${
          changed
            ? html`<${Bars} ...${{ column: sample.columns[quantity], sample, quantity, x, wide, kind: "was" }} />`
            : null
        }
        <${Bars} ...${{ column: columns[quantity], sample, quantity, x, wide }} />
        ${range ? html`<path class="value" d=${lineOf(columns.values, sample.mask, { x, range })} />` : null}
        ${seen === null ? null : html`<line class="here" x1=${x(seen)} x2=${x(seen)} y1="0" y2=${HIGH} />`}
      </svg>
    </div>
  `;
}
