// Without a critic: the answers of a group as dots on the axis of their outcomes, their mean and σ,
// and the chosen one's advantage as its distance from what it is compared with.

import { tone } from "../core/colour.js";
import { clamp } from "../core/number.js";
import { Panel } from "../core/parts.js";
import { go } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { pressable, ticksOf } from "../core/ticks.js";
import { useWidth } from "../core/width.js";
import { tokenSeen } from "../token/chosen.js";
import { figureOf, tickOf } from "../token/figure.js";
import { html, useRef } from "../vendor/preact.js";
import { groupOf } from "./group.js";
import { tried } from "./tried.js";

const SIDE = 46;
const AXIS = 112; // y of the axis
const HEIGHT = 190;
const DOT = 7;

const figure = (x, options) => figureOf("score", x, options);

// Ends of the axis: all outcomes, and room for one σ.
function rangeOf({ members, mean, std, baseline }) {
  const all = members.map((row) => row.outcome).concat(mean - std, mean + std, baseline ?? mean);
  const low = Math.min(...all);
  const high = Math.max(...all);
  const room = (high - low) * 0.08 || 0.5;
  return [low - room, high + room];
}

// Dots that would cover each other stand above each other: [{row, x, y}].
function placed(members, x) {
  const taken = [];
  const order = members.slice().sort((a, b) => a.outcome - b.outcome);
  return order.map((row) => {
    const at = x(row.outcome);
    const level = taken.filter((other) => Math.abs(other - at) < 2 * DOT).length;
    taken.push(at);
    return { row, x: at, y: AXIS - 10 - (level % 6) * (2 * DOT + 1) };
  });
}

function Dot({ row, x, y, isChosen }) {
  const open = () => go({ sample: row.position });
  const name = t("whatif.dot", { position: row.position, score: figure(row.score) });
  return html`
    <g
      class=${`member ${row.right ? "right" : "wrong"} ${isChosen ? "chosen" : ""}`}
      data-member=${row.position} aria-label=${name} ...${pressable(open, isChosen)}
    >
      <title>${name}</title>
      ${isChosen ? html`<circle cx=${x} cy=${y} r=${DOT + 4} class="ring" />` : null}
      <circle cx=${x} cy=${y} r=${DOT} />
    </g>
  `;
}

function Marks({ group, x, width }) {
  const { mean, std, baseline } = group;
  const end = (at) => clamp(at, SIDE / 2, width - SIDE / 2);
  const isOther = baseline !== null && Math.abs(baseline - mean) > 1e-6;
  return html`
    <rect
      class="sigma" x=${x(mean - std)} width=${Math.max(0, x(mean + std) - x(mean - std))}
      y="22" height=${AXIS - 22}
    />
    <line class="mean" x1=${x(mean)} x2=${x(mean)} y1="18" y2=${AXIS + 6} />
    <text class="mid" x=${end(x(mean))} y="13">${t("whatif.mean", { x: figure(mean) })}</text>
    ${
      isOther
        ? html`<line class="baseline" x1=${x(baseline)} x2=${x(baseline)} y1="18" y2=${AXIS + 30} />`
        : null
    }
  `;
}

// From what the outcome is compared with to the outcome.
function Distance({ group, x }) {
  const { baseline, chosen } = group;
  if (baseline === null) return null;
  const from = x(baseline);
  const to = x(chosen.outcome);
  const y = AXIS + 34;
  const ahead = to >= from ? 1 : -1;
  const gap = chosen.outcome - baseline;
  const fill = tone(gap);
  return html`
    <g id="distance">
      <line x1=${from} x2=${from} y1=${AXIS} y2=${y + 4} class="thread" />
      <line x1=${to} x2=${to} y1=${AXIS} y2=${y + 4} class="thread" />
      ${
        Math.abs(to - from) < 2
          ? null
          : html`
            <line x1=${from} x2=${to - ahead * 5} y1=${y} y2=${y} stroke=${fill} stroke-width="3.5" />
            <path d=${`M${to - ahead * 8} ${y - 5} L${to} ${y} L${to - ahead * 8} ${y + 5} Z`} fill=${fill} />
          `
      }
      <text class="mid strong" x=${(from + to) / 2} y=${y + 18} style=${{ fill }}>
        ${isKid.value ? figure(gap, { sign: true }) : `o − b = ${figure(gap, { sign: true })}`}
      </text>
    </g>
  `;
}

function Axis({ range, x }) {
  const ticks = ticksOf(range[0], range[1]);
  return html`
    <line x1=${x(range[0])} x2=${x(range[1])} y1=${AXIS} y2=${AXIS} class="axis" />
    ${ticks.map(
      (tick) => html`
        <line x1=${x(tick)} x2=${x(tick)} y1=${AXIS} y2=${AXIS + 4} class="axis" />
        <text class="mid quiet" x=${x(tick)} y=${AXIS + 17}>${tickOf("score", tick, ticks)}</text>
      `,
    )}
  `;
}

// ---- in words ----

function kidSaid(group) {
  const { chosen, mean, members } = group;
  const how =
    Math.abs(chosen.outcome - mean) < 0.05 ? "same" : chosen.outcome > mean ? "more" : "less";
  const numbers = { n: members.length, mean: figure(mean), x: figure(chosen.outcome) };
  return `${t(group.isGrouped ? "whatif.kid.group" : "whatif.kid.all", numbers)} ${t(`whatif.kid.${how}`, numbers)}`;
}

function saidOf(group) {
  const { chosen, mean, std, baseline, scale, advantage, members } = group;
  if (members.length === 1)
    return t("whatif.group.alone", { a: figure(advantage, { sign: true }) });
  const where = t(group.isGrouped ? "whatif.group.same" : "whatif.group.all", {
    n: members.length,
    mean: figure(mean),
    std: figure(std),
  });
  const numbers = {
    o: figure(chosen.outcome),
    b: figure(baseline),
    s: figure(scale),
    a: figure(advantage, { sign: true }),
  };
  const formula = tried.value?.offer.formula ?? "";
  let how = t("whatif.group.formula", { ...numbers, formula });
  if (baseline !== null) how = t(scale === 1 ? "whatif.group.less" : "whatif.group.over", numbers);
  const every = group.isOneNumber ? ` ${t("whatif.group.every")}` : "";
  return `${where} ${how}${every}`;
}

export function GroupPicture({ sample }) {
  const group = groupOf(sample, tokenSeen.value);
  return group ? html`<${Picture} group=${group} />` : null;
}

function Picture({ group }) {
  const box = useRef(null);
  const width = useWidth(box);
  return html`
    <${Panel} id="group-picture" title=${t("whatif.group")}>
      <div class="group-box" ref=${box}>${drawn(group, width)}</div>
      <p id="group-said" class="said">${isKid.value ? kidSaid(group) : saidOf(group)}</p>
    </${Panel}>
  `;
}

function drawn(group, width) {
  const range = rangeOf(group);
  const x = (o) => SIDE + ((o - range[0]) / (range[1] - range[0])) * (width - 2 * SIDE);
  const dots = placed(group.members, x);
  return html`
    <svg
      viewBox=${`0 0 ${width} ${HEIGHT}`} height=${HEIGHT} role="group"
      aria-label=${t("whatif.group.picture", { n: group.members.length })}
    >
      <${Marks} group=${group} x=${x} width=${width} />
      <${Axis} range=${range} x=${x} />
      <${Distance} group=${group} x=${x} />
      ${dots.map(
        ({ row, x: at, y }) =>
          html`<${Dot} key=${row.position} row=${row} x=${at} y=${y} isChosen=${row.position === group.chosen.position} />`,
      )}
    </svg>
  `;
}
