// How a number is spread over the written tokens of a step. A click on a bin lists its tokens.

import { colour, level } from "../core/colour.js";
import { columns, stepShown } from "../core/data.js";
import { moments, num } from "../core/number.js";
import { Check, Loaded, Panel, Segment } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { pressable, ticksOf } from "../core/ticks.js";
import { useWidth } from "../core/width.js";
import { figure, figureOf, tickOf } from "../token/figure.js";
import { symbolOf } from "../token/view.js";
import { html, useMemo, useRef } from "../vendor/preact.js";
import { binOf, histogram } from "./bins.js";
import { TokenList } from "./token_list.js";
import { ValuesAndReturns } from "./values_returns.js";

const SHOWN = ["advantages", "whitened", "ratio", "values", "deltas", "kl"];
const BINS = 48;
const HEIGHT = 250;
const FLOOR = 26; // room for the axis
const SIDE = 50;
const ROOF = 22;

export function Distributions({ found }) {
  return html`<${Loaded} from=${columns}>${(data) => drawn(data, found.settings)}</${Loaded}>`;
}

function drawn(data, settings) {
  const there = SHOWN.filter((name) => data.columns[name]);
  if (!there.length) return html`<p class="quiet" id="no-numbers">${t("compare.no_numbers")}</p>`;
  return html`
    <${Distribution} data=${data} there=${there} settings=${settings} />
    ${data.columns.values && data.columns.returns ? html`<${ValuesAndReturns} data=${data} />` : null}
  `;
}

function Distribution({ data, there, settings }) {
  const name = there.includes(state.column.value) ? state.column.value : there[0];
  const made = useMemo(() => histogram(data.columns[name], data.columns.mask, BINS), [data, name]);
  const bar = html`
    <${Segment}
      id="column" label=${t("compare.column")} value=${name}
      options=${there.map((each) => [each, symbolOf(each)])}
      choose=${(column) => go({ column, bin: null })}
    />
    <${Check}
      id="log-counts" label=${t("compare.log")} checked=${state.logcounts.value}
      change=${(isOn) => go({ logcounts: isOn || null })}
    />
  `;
  const bin = /^\d+$/.test(state.bin.value ?? "") ? Number(state.bin.value) : null;
  return html`
    <${Panel} id="distribution" title=${t("compare.distributions.title", { step: stepShown.value })} bar=${bar}>
      <${Bars} made=${made} name=${name} settings=${settings} bin=${bin} />
      <p id="distribution-said" class="said">${saidOf(made, name, settings)}</p>
      ${bin !== null && bin < BINS ? html`<${BinTokens} made=${made} name=${name} bin=${bin} />` : null}
    </${Panel}>
  `;
}

const edgesOf = ({ range: [low, high] }, k) => [
  low + (k / BINS) * (high - low),
  low + ((k + 1) / BINS) * (high - low),
];

// Where the ratio is clipped.
function limitsOf(name, settings) {
  const { clip_low, clip_high } = settings ?? {};
  if (name !== "ratio" || typeof clip_low !== "number" || typeof clip_high !== "number") return [];
  return [1 - clip_low, 1 + clip_high];
}

function saidOf({ at, numbers, range }, name, settings) {
  const n = at.length;
  const { mean, std } = moments(at.map((i) => numbers[i]));
  const said = t("compare.spread", {
    n: n.toLocaleString("en"),
    name: symbolOf(name),
    mean: num(mean),
    std: num(std),
    low: num(range[0]),
    high: num(range[1]),
  });
  const limits = limitsOf(name, settings);
  if (!limits.length) return said;
  const outside = at.filter((i) => numbers[i] < limits[0] || numbers[i] > limits[1]).length;
  const share = ((100 * outside) / Math.max(n, 1)).toFixed(1);
  const [low, high] = limits.map((limit) => num(limit, { digits: 2 }));
  return `${said} ${t("compare.outside", { low, high, share })}`;
}

const said = (name, x) => (name === "ratio" ? figure(x) : figureOf(name, x));

function Bars({ made, name, settings, bin }) {
  const box = useRef(null);
  const width = useWidth(box);
  const { range, counts } = made;
  const limits = limitsOf(name, settings);
  const low = Math.min(range[0], ...limits);
  const high = Math.max(range[1], ...limits);
  const x = (value) => SIDE + ((value - low) / (high - low)) * (width - SIDE - 12);
  const size = state.logcounts.value ? (count) => Math.log10(count + 1) : (count) => count;
  const top = size(Math.max(...counts, 1));
  const y = (count) => HEIGHT - FLOOR - (size(count) / top) * (HEIGHT - FLOOR - ROOF);
  const ticks = ticksOf(low, high, Math.max(3, Math.floor(width / 110)));
  const most = Math.max(...counts);
  return html`
    <div class="plot" ref=${box}>
      <svg viewBox=${`0 0 ${width} ${HEIGHT}`} height=${HEIGHT} role="group" aria-label=${t("compare.histogram", { name: symbolOf(name) })}>
        ${ticks.map(
          (tick) => html`
            <line class="rule-line" x1=${x(tick)} x2=${x(tick)} y1=${ROOF} y2=${HEIGHT - FLOOR} />
            <text class="mid" x=${x(tick)} y=${HEIGHT - 8}>${tickOf(name, tick, ticks)}</text>
          `,
        )}
        <text class="end" x=${SIDE - 6} y=${ROOF + 8}>${most.toLocaleString("en")}</text>
        <text class="end" x=${SIDE - 6} y=${HEIGHT - FLOOR}>0</text>
        ${counts.map((count, k) => {
          const [from, to] = edgesOf(made, k);
          const middle = (from + to) / 2;
          const label = t("compare.bin", { low: said(name, from), high: said(name, to), n: count });
          const open = () => go({ bin: bin === k ? null : String(k) });
          const wide = Math.max(1, x(to) - x(from) - 1);
          return html`
            <g
              key=${k} data-bin=${k} data-count=${count} aria-label=${label}
              class=${`bin${bin === k ? " chosen" : ""}`} ...${count ? pressable(open, bin === k) : {}}
            >
              <title>${label}</title>
              <rect class="room" x=${x(from)} y=${ROOF} width=${wide} height=${HEIGHT - FLOOR - ROOF} />
              <rect
                class="bar-fill" x=${x(from)} y=${y(count)} width=${wide}
                height=${HEIGHT - FLOOR - y(count)} fill=${colour(level(name, middle))}
              />
            </g>
          `;
        })}
        ${limits.map(
          (limit) => html`
            <line class="limit" x1=${x(limit)} x2=${x(limit)} y1="16" y2=${HEIGHT - FLOOR} />
            <text class="mid strong" x=${x(limit)} y="12">${num(limit, { digits: 2 })}</text>
          `,
        )}
      </svg>
    </div>
  `;
}

function BinTokens({ made, name, bin }) {
  const { at, numbers, range } = made;
  const tokens = at.filter((i) => binOf(numbers[i], range, BINS) === bin);
  const [low, high] = edgesOf(made, bin);
  const title = t("compare.bin", {
    low: said(name, low),
    high: said(name, high),
    n: tokens.length,
  });
  return html`<${TokenList} tokens=${tokens} title=${title} show=${(i) => `${symbolOf(name)} ${said(name, numbers[i])}`} />`;
}
