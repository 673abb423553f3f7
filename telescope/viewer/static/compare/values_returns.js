// V against R: a grid of counts, with the diagonal on which the critic would be exact.

import { Panel } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { pressable, ticksOf } from "../core/ticks.js";
import { useWidth } from "../core/width.js";
import { figureOf, tickOf } from "../token/figure.js";
import { symbolOf } from "../token/view.js";
import { html, useMemo, useRef } from "../vendor/preact.js";
import { binOf, grid } from "./bins.js";
import { TokenList } from "./token_list.js";

const CELLS = 28;
const HEIGHT = 320;
const SIDE = 54;
const FLOOR = 38;
const ROOF = 10;
const WIDEST = 560;

export function ValuesAndReturns({ data }) {
  const { values, returns, mask } = data.columns;
  const made = useMemo(() => grid(values, returns, mask, CELLS), [data]);
  const cell = /^\d+,\d+$/.test(state.bin.value ?? "")
    ? state.bin.value.split(",").map(Number)
    : null;
  return html`
    <${Panel} id="values-returns" title=${t("compare.vr.title")}>
      <p class="quiet">${t("compare.vr.about")}</p>
      <${Grid} made=${made} cell=${cell} />
      ${cell ? html`<${CellTokens} data=${data} made=${made} cell=${cell} />` : null}
    </${Panel}>
  `;
}

// Axes of a square plot: x and y functions and their ticks.
export function Axes({ xRange, yRange, x, y, width, height, names }) {
  const xTicks = ticksOf(xRange[0], xRange[1], Math.max(3, Math.floor(width / 90)));
  const yTicks = ticksOf(yRange[0], yRange[1], 5);
  return html`
    ${xTicks.map(
      (tick) => html`
        <line class="rule-line" x1=${x(tick)} x2=${x(tick)} y1=${ROOF} y2=${height - FLOOR} />
        <text class="mid" x=${x(tick)} y=${height - FLOOR + 14}>${tickOf("values", tick, xTicks)}</text>
      `,
    )}
    ${yTicks.map(
      (tick) => html`
        <line class="rule-line" x1=${SIDE} x2=${width - 8} y1=${y(tick)} y2=${y(tick)} />
        <text class="end" x=${SIDE - 5} y=${y(tick) + 4}>${tickOf("returns", tick, yTicks)}</text>
      `,
    )}
    <text class="mid name" x=${(SIDE + width) / 2} y=${height - 5}>${names[0]}</text>
    <text class="mid name" transform=${`translate(12 ${(height - FLOOR) / 2}) rotate(-90)`}>${names[1]}</text>
  `;
}

export function Diagonal({ xRange, yRange, x, y }) {
  const low = Math.max(xRange[0], yRange[0]);
  const high = Math.min(xRange[1], yRange[1]);
  if (low >= high) return null;
  return html`<line class="diagonal" x1=${x(low)} y1=${y(low)} x2=${x(high)} y2=${y(high)} />`;
}

// Screen places of a plot with these ranges.
export function placesOf({ xRange, yRange, width, height }) {
  const x = (v) => SIDE + ((v - xRange[0]) / (xRange[1] - xRange[0])) * (width - SIDE - 8);
  const y = (v) =>
    height - FLOOR - ((v - yRange[0]) / (yRange[1] - yRange[0])) * (height - FLOOR - ROOF);
  return { x, y };
}

function Grid({ made, cell }) {
  const box = useRef(null);
  const width = Math.min(useWidth(box), WIDEST);
  const { xRange, yRange, counts } = made;
  const { x, y } = placesOf({ xRange, yRange, width, height: HEIGHT });
  const most = Math.log(Math.max(...counts.flat(), 1) + 1);
  const at = (range, k) => range[0] + (k / CELLS) * (range[1] - range[0]);
  const names = [symbolOf("values"), symbolOf("returns")];
  const cells = counts.flatMap((column, i) =>
    column.map((count, j) => ({ i, j, count })).filter((each) => each.count),
  );
  return html`
    <div class="plot" ref=${box}>
      <svg viewBox=${`0 0 ${width} ${HEIGHT}`} width=${width} height=${HEIGHT} role="group" aria-label=${t("compare.vr.title")}>
        <${Axes} ...${{ xRange, yRange, x, y, width, height: HEIGHT, names }} />
        ${cells.map(({ i, j, count }) => {
          const isChosen = cell !== null && cell[0] === i && cell[1] === j;
          const open = () => go({ bin: isChosen ? null : `${i},${j}` });
          const left = x(at(xRange, i));
          const top = y(at(yRange, j + 1));
          const label = t("compare.cell", {
            v: figureOf("values", at(xRange, i + 0.5), { digits: 2 }),
            r: figureOf("returns", at(yRange, j + 0.5), { digits: 2 }),
            n: count,
          });
          return html`
            <rect
              key=${`${i},${j}`} data-cell=${`${i},${j}`} data-count=${count}
              class=${`cell${isChosen ? " chosen" : ""}`} aria-label=${label}
              x=${left} y=${top} width=${x(at(xRange, i + 1)) - left} height=${y(at(yRange, j)) - top}
              style=${{ fillOpacity: 0.12 + (0.88 * Math.log(count + 1)) / most }}
              ...${pressable(open, isChosen)}
            ><title>${label}</title></rect>
          `;
        })}
        <${Diagonal} ...${{ xRange, yRange, x, y }} />
      </svg>
    </div>
  `;
}

function CellTokens({ data, made, cell: [i, j] }) {
  const { values, returns } = data.columns;
  const { xRange, yRange, at } = made;
  const isInside = (k) =>
    binOf(values[k], xRange, CELLS) === i && binOf(returns[k], yRange, CELLS) === j;
  const tokens = at.filter(isInside);
  const title = t("compare.cell.title", { n: tokens.length });
  const show = (k) =>
    `${symbolOf("values")} ${figureOf("values", values[k])} ` +
    `${symbolOf("returns")} ${figureOf("returns", returns[k])}`;
  return html`<${TokenList} tokens=${tokens} title=${title} show=${show} />`;
}
