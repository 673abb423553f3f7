// Is the critic right on average? V against the return that was observed, in bins of equal counts.

import { batchSize } from "../core/batch.js";
import { columns, stepShown } from "../core/data.js";
import { num } from "../core/number.js";
import { Loaded, Panel } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { pressable } from "../core/ticks.js";
import { useWidth } from "../core/width.js";
import { figureOf } from "../token/figure.js";
import { html, useMemo, useRef } from "../vendor/preact.js";
import { cutter, deltasOf, returnsOf } from "../whatif/gae.js";
import { calibrationOf, explainedVariance, LEAST_ANSWERS } from "./bins.js";
import { TokenList } from "./token_list.js";
import { Axes, Diagonal, placesOf } from "./values_returns.js";

const HEIGHT = 360;
const WIDEST = 620;

export function Calibration({ found }) {
  if (found.settings?.critic === false)
    return html`<p class="quiet" id="no-critic">${t("compare.no_critic")}</p>`;
  return html`
    <${Loaded} from=${columns}>
      ${(data) => drawn(data, found.settings)}
    </${Loaded}>
  `;
}

function drawn(data, settings) {
  const { values, token_level_rewards: rewards } = data.columns;
  if (!values || !rewards)
    return html`<p class="quiet" id="no-numbers">${t("compare.no_rewards")}</p>`;
  return html`<${Plot} data=${data} gamma=${settings?.gamma ?? 1} />`;
}

// G: the discounted rewards that came, which is the return with λ = 1.
function observed(data, gamma) {
  const { mask, values } = data.columns;
  const deltas = deltasOf(data, gamma);
  const out = new Float64Array(deltas.length);
  for (let row = 0; row + 1 < data.offsets.length; row++) {
    const own = cutter(data.offsets, row);
    const of = { mask: own(mask), deltas: own(deltas), values: own(values) };
    out.set(returnsOf(of, gamma), data.offsets[row]);
  }
  return out;
}

function Plot({ data, gamma }) {
  const made = useMemo(() => {
    const returns = observed(data, gamma);
    const { values, mask } = data.columns;
    const { bins, at, gap } = calibrationOf(values, returns, { mask, offsets: data.offsets });
    const explained = explainedVariance(values, returns, at);
    const written = mask.reduce((sum, m) => sum + m, 0);
    return { bins, at, gap, values, returns, explained, written };
  }, [data, gamma]);
  const bin = /^\d+$/.test(state.bin.value ?? "") ? Number(state.bin.value) : null;
  const chosen = bin === null ? null : made.bins[bin];
  return html`
    <${Panel} id="calibration" title=${t("compare.calibration.title", { step: stepShown.value })}>
      <p class="quiet">${t("compare.calibration.about")}</p>
      <${Dots} bins=${made.bins} bin=${bin} />
      <p id="calibration-rests" class="quiet">${restsOn(made)}</p>
      <p id="explained" class="said">${saidOf(made)}</p>
      ${
        chosen
          ? html`<${TokenList}
              tokens=${chosen.tokens}
              title=${t("compare.cell.title", { n: chosen.count })}
              show=${(i) => `${isKid.value ? t("compare.kid.guess") : "V"} ${figureOf("values", made.values[i])} ${isKid.value ? t("compare.kid.came") : "G"} ${figureOf("returns", made.returns[i])}`}
            />`
          : null
      }
    </${Panel}>
  `;
}

const count = (n) => n.toLocaleString("en");

// How much the picture rests on, and what its bars are.
function restsOn({ at, written, gap: { answers }, bins }) {
  const every = batchSize();
  const said = { n: count(answers), tokens: count(at.length), written: count(written) };
  const rests =
    every === null
      ? t("compare.rests", said)
      : t("compare.rests.of", { ...said, every: count(every) });
  const without = bins.filter(({ error }) => error === null).length;
  if (without === 0) return `${rests} ${t("compare.bars")}`;
  const few = { without, bins: bins.length, least: LEAST_ANSWERS };
  const key = without === bins.length ? "compare.bars.none" : "compare.bars.some";
  return `${rests} ${t(key, few)}`;
}

// V − G on average, with its standard error where there are enough answers.
function biasOf({ mean, error }) {
  const bias = Math.abs(mean) < 0.005 ? "none" : mean > 0 ? "high" : "low";
  const said = t(`compare.bias.${bias}`, { gap: figureOf("values", Math.abs(mean)) });
  if (error === null || isKid.value) return said;
  const isUnsure = bias !== "none" && Math.abs(mean) < 2 * error;
  const key = isUnsure ? "compare.bias.unsure" : "compare.bias.sure";
  return `${said} ${t(key, { error: figureOf("values", error) })}`;
}

function saidOf({ explained, gap }) {
  const biasSaid = biasOf(gap);
  if (explained === null) return `${t("compare.explained.flat")} ${biasSaid}`;
  const share = Math.round(100 * explained);
  const kind = explained > 0.005 ? "part" : "nothing";
  return `${t(`compare.explained.${kind}`, { x: num(explained, { digits: 2 }), share })} ${biasSaid}`;
}

function rangeOf(numbers) {
  const low = Math.min(...numbers);
  const high = Math.max(...numbers);
  const room = (high - low) * 0.06 || 0.1;
  return [low - room, high + room];
}

const COUNT = 30; // px of a written count

// Where a dot and its bar end.
const footOf = (each, y) => Math.max(y(each.y) + 6, y(each.y - (each.error ?? 0)));

// Which bins have room for their count under their bar, from left to right.
function roomFor(bins, x) {
  let free = -COUNT;
  return bins.map((each) => {
    const isFree = x(each.x) >= free;
    if (isFree) free = x(each.x) + COUNT;
    return isFree;
  });
}

function Dots({ bins, bin }) {
  const box = useRef(null);
  const width = Math.min(useWidth(box), WIDEST);
  const xRange = rangeOf(bins.map(({ x }) => x));
  const yRange = rangeOf(
    bins.flatMap(({ x, y, error }) => [y - (error ?? 0), y + (error ?? 0), x]),
  );
  const { x, y } = placesOf({ xRange, yRange, width, height: HEIGHT });
  const counted = roomFor(bins, x);
  const names = isKid.value
    ? [t("compare.kid.guess"), t("compare.kid.came")]
    : ["V", t("compare.observed")];
  return html`
    <div class="plot" ref=${box}>
      <svg viewBox=${`0 0 ${width} ${HEIGHT}`} width=${width} height=${HEIGHT} role="group" aria-label=${t("compare.calibration.picture")}>
        <${Axes} ...${{ xRange, yRange, x, y, width, height: HEIGHT, names }} />
        <${Diagonal} ...${{ xRange, yRange, x, y }} />
        ${bins.map((each, k) => {
          const label = t("compare.calibration.bin", {
            v: figureOf("values", each.x),
            g: figureOf("returns", each.y),
            n: count(each.count),
            answers: count(each.answers),
            error: each.error === null ? t("compare.few") : `± ${figureOf("returns", each.error)}`,
          });
          const open = () => go({ bin: bin === k ? null : String(k) });
          return html`
            <g key=${k} class=${`point${bin === k ? " chosen" : ""}`} data-bin=${k} data-count=${each.count} aria-label=${label} ...${pressable(open, bin === k)}>
              <title>${label}</title>
              ${
                each.error === null
                  ? null
                  : html`<line
                      class="error" data-error=${each.error} x1=${x(each.x)} x2=${x(each.x)}
                      y1=${y(each.y - each.error)} y2=${y(each.y + each.error)}
                    />`
              }
              <circle cx=${x(each.x)} cy=${y(each.y)} r="6" data-x=${each.x} data-y=${each.y} />
              ${counted[k] ? html`<text class="mid" x=${x(each.x)} y=${footOf(each, y) + 13}>${count(each.count)}</text>` : null}
            </g>
          `;
        })}
      </svg>
    </div>
  `;
}
