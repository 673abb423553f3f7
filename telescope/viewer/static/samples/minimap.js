// The whole answer at a glance: V as a line, Â as bars, and the window of the fence picture.

import { level, scaleOf } from "../core/colour.js";
import { has } from "../core/number.js";
import { t } from "../core/text.js";
import { lens, pin, tokenPanel, tokenSeen } from "../token/chosen.js";
import { figureOf } from "../token/figure.js";
import { symbolOf } from "../token/view.js";
import { html, useMemo, useRef } from "../vendor/preact.js";
import { viewOf } from "../whatif/whatif.js";

const WIDE = 1000;
const HIGH = 74;
const ZERO = 56; // of the bars
const BAR = 16;
const MOST_BARS = 500;
const ROOF = 6;
const FLOOR = 36; // of the line

// The smallest and the largest V, with 0 inside; null without any.
function rangeOf(values, mask) {
  const seen = values.filter((v, i) => mask[i] && has(v));
  if (!seen.length) return null;
  const low = Math.min(0, ...seen);
  return { low, high: Math.max(0, ...seen) };
}

function lineOf(values, mask, { x, range: { low, high } }) {
  const size = high - low || 1;
  const y = (v) => FLOOR - ((v - low) / size) * (FLOOR - ROOF);
  let path = "";
  values.forEach((v, i) => {
    if (mask[i] && has(v)) path += `${path ? "L" : "M"}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
  });
  return path;
}

// What the line and the bars are, with the line's highest and lowest number.
function Names({ range, quantity }) {
  const number = (v) => figureOf("values", v, { digits: 2 });
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

// The largest number of one sign in every stretch of tokens: {at, wide, number}.
function peaksOf(column, mask, sign) {
  const size = Math.ceil(column.length / MOST_BARS);
  const wide = WIDE / column.length;
  const out = [];
  for (let from = 0; from < column.length; from += size) {
    const to = Math.min(column.length, from + size);
    let number = 0;
    for (let i = from; i < to; i++) {
      if (mask[i] && column[i] * sign > number * sign) number = column[i];
    }
    if (number !== 0) out.push({ at: from * wide, wide: (to - from) * wide, number });
  }
  return out;
}

// The bars of one sign as one path.
function barsOf(column, mask, sign, quantity) {
  const bars = peaksOf(column, mask, sign).map(({ at, wide, number }) => {
    const height = Math.max(0.8, Math.abs(level(quantity, number)) * BAR).toFixed(1);
    return `M${at.toFixed(1)} ${ZERO}h${wide.toFixed(1)}v${sign > 0 ? "-" : ""}${height}h-${wide.toFixed(1)}Z`;
  });
  return bars.join("");
}

function Bars({ column, mask, quantity, kind = "" }) {
  if (!column) return null;
  return html`
    <path class=${`plus ${kind}`} d=${barsOf(column, mask, 1, quantity)} />
    <path class=${`minus ${kind}`} d=${barsOf(column, mask, -1, quantity)} />
  `;
}

// Where a tool wrote.
function toolsOf(mask) {
  const wide = WIDE / mask.length;
  const one = (m, i) =>
    m ? "" : `M${(i * wide).toFixed(1)} 2h${wide.toFixed(1)}v70h-${wide.toFixed(1)}Z`;
  return mask.map(one).join("");
}

// What does not change while the pointer walks along the tokens. `still`: not even with λ.
function drawn({ sample, columns, changed, quantity, still }) {
  const { mask } = sample;
  return html`
    ${still.tools}
    <line class="zero" x1="0" x2=${WIDE} y1=${ZERO} y2=${ZERO} />
    ${changed ? html`<${Bars} column=${sample.columns[quantity]} kind="was" ...${{ mask, quantity }} />` : null}
    <${Bars} column=${columns[quantity]} ...${{ mask, quantity }} />
    ${still.value}
  `;
}

function stillOf(sample, { values }, x) {
  const { mask } = sample;
  const range = values ? rangeOf(values, mask) : null;
  return {
    range,
    tools: html`<path class="tools" d=${toolsOf(mask)} />`,
    value: range ? html`<path class="value" d=${lineOf(values, mask, { x, range })} />` : null,
  };
}

export function Minimap({ sample }) {
  const box = useRef(null);
  const count = sample.token_ids.length;
  const wide = WIDE / Math.max(count, 1);
  const x = (i) => (i + 0.5) * wide;
  const view = viewOf(sample);
  const { columns, changed } = view;
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
  const still = useMemo(() => stillOf(sample, columns, x), [sample, columns.values]);
  const back = useMemo(
    () => drawn({ sample, columns, changed, quantity, still }),
    [view, scaleOf(quantity)],
  );
  if (!still.range && !columns[quantity]) return null; // no number of a token is known
  return html`
    <div class="minimap-box">
      <${Names} range=${still.range} quantity=${quantity} />
      <svg
        id="minimap" class="minimap" ref=${box} viewBox=${`0 0 ${WIDE} ${HIGH}`}
        preserveAspectRatio="none" role="slider" tabindex="0" aria-label=${t("reader.minimap")}
        aria-valuemin="0" aria-valuemax=${count - 1} aria-valuenow=${seen ?? 0}
        onKeyDown=${tokenPanel.onKeyDown}
        onPointerDown=${(event) => pin(tokenAt(event))}
        onPointerMove=${drag}
      >
        <rect class="lens" x=${from * wide} width=${(to - from) * wide} y="1" height=${HIGH - 2} rx="2" />
        ${back}
        ${seen === null ? null : html`<line class="here" x1=${x(seen)} x2=${x(seen)} y1="0" y2=${HIGH} />`}
      </svg>
    </div>
  `;
}
