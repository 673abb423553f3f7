// The fence picture's gaps: the tokens' boxes, and the numbers that belong to each token.

import { colour, ink, level, tone } from "../core/colour.js";
import { has, sub } from "../core/number.js";
import { state } from "../core/state.js";
import { isKid } from "../core/text.js";
import { groups, hex, visible } from "../core/token_text.js";
import { html } from "../vendor/preact.js";
import { said } from "./fence_values.js";
import { figure, figureOf } from "./figure.js";
import { fitted } from "./fit.js";
import { badges, isFlipped, symbolOf } from "./view.js";

// ---- rewards, surprises, advantages ----

function bar(scene, i, { quantity, x, top, y }) {
  if (!has(x)) return null;
  const left = scene.mid(i) - scene.gap * 0.36;
  const right = scene.mid(i) + scene.gap * 0.36;
  const height = x === 0 ? 0 : Math.max(1.5, (Math.abs(x) / top) * 17);
  return html`
    <line x1=${left} x2=${right} y1=${y} y2=${y} class="bar-line" />
    <rect x=${left} width="9" y=${x < 0 ? y : y - height} height=${height} fill=${tone(x)} />
    ${said(scene.mid(i) + 6, y - 4, figureOf(quantity, x, { sign: true }), { bold: scene.isChosen(i) })}
  `;
}

// The recorded number below the new one, while a what-if is on.
function was(scene, i, column, y) {
  const x = scene.recorded[column]?.[i];
  if (!scene.changed || !has(x)) return null;
  return said(
    scene.mid(i) + (column === "deltas" ? 6 : 0),
    y,
    figureOf(column, x, { sign: true }),
    {
      kind: "was",
      size: 10,
    },
  );
}

export function Numbers(scene) {
  const { tokens, r, d } = scene;
  const largest = (column) =>
    Math.max(
      1e-9,
      ...tokens
        .map((i) => column[i])
        .filter(has)
        .map(Math.abs),
    );
  const tops = { r: largest(r), d: largest(d) };
  return tokens.map((i) => numbersOf(scene, i, tops));
}

function numbersOf(scene, i, tops) {
  const { sample, columns, r, d, a, mid, weights, row } = scene;
  if (!sample.mask[i]) return said(mid(i), row.r - 4, "🔧");
  const w = columns.whitened?.[i];
  const inFan = scene.isChosen(i) && weights.length;
  const mark = isFlipped(columns, i) ? "⇅" : "";
  return html`
    ${bar(scene, i, { quantity: "token_level_rewards", x: r[i], top: tops.r, y: row.r })}
    ${bar(scene, i, { quantity: "deltas", x: d[i], top: tops.d, y: row.d })}
    ${was(scene, i, "deltas", row.d + 12)}
    ${inFan ? null : said(mid(i), row.A, figureOf("advantages", a[i], { sign: true }))}
    ${was(scene, i, "advantages", row.A + 15)}
    ${said(mid(i), row.W, figureOf("whitened", w, { sign: true }) + mark, {
      bold: scene.isChosen(i),
      fill: has(w) ? tone(w) : null,
    })}
    ${was(scene, i, "whitened", row.W + 13)}
  `;
}

// ---- the tokens' boxes ----

// A token's box fills its gap. A character that is split over several tokens is one box with
// cells.
export function Boxes(scene) {
  const inSight = groups(scene.sample).filter(
    (group) => group.to > scene.from && group.from < scene.to,
  );
  return inSight.map((group) => {
    const from = Math.max(group.from, scene.from);
    const to = Math.min(group.to, scene.to);
    const isOne = group.to - group.from === 1;
    const cells = scene.tokens.filter((i) => i >= from && i < to);
    const word = visible(group.text, 24) || "∅";
    return html`
      ${cells.map((i) => cell(scene, i, { from, to, isOne }))}
      ${isOne ? tokenIn(scene, from, word) : splitWord(scene, from, to, word)}
    `;
  });
}

function splitWord({ post, gap, row }, from, to, word) {
  const { text, size } = fitted(word, (to - from) * gap - 14);
  return said((post(from) + post(to)) / 2, row.box + 18, text, {
    kind: "ui halo",
    bold: 650,
    size,
  });
}

const strengthOf = ({ sample, columns }, i) =>
  sample.mask[i] ? level(state.colour.value, columns[state.colour.value]?.[i]) : null;

function cell(scene, i, { from, to, isOne }) {
  const { sample, columns, post, mid, gap, row } = scene;
  const strength = strengthOf(scene, i);
  const isTool = !sample.mask[i];
  const first = i === from ? 5 : 0;
  const last = i === to - 1 ? 5 : 0;
  const on = ink(strength);
  const mark = badges(sample, columns, i);
  return html`
    <rect
      x=${post(i) + first} y=${row.box} width=${gap - first - last} height=${row.boxHeight}
      rx=${isOne ? 5 : 0} fill=${isTool ? "var(--none)" : colour(strength)}
      class=${isOne && !isTool ? "box" : "box dashed"}
    />
    ${isOne ? null : said(mid(i), row.box + 32, hex(sample.token_bytes[i]), { size: 9, fill: on })}
    ${mark ? said(post(i) + gap - 7, row.box + 11, mark, { kind: "end", size: 12, fill: on }) : null}
  `;
}

function tokenIn(scene, i, word) {
  const { sample, columns, mid, gap, row } = scene;
  const quantity = state.colour.value;
  const fill = ink(strengthOf(scene, i));
  const { text, size } = fitted(word, gap - 14);
  const name = isKid.value ? "" : `${symbolOf(quantity)} `;
  const number = sample.mask[i]
    ? name + figureOf(quantity, columns[quantity]?.[i], { sign: true })
    : "–";
  return html`
    ${said(mid(i), row.box + 18, text, { kind: "ui", bold: 650, fill, size })}
    ${said(mid(i), row.box + 32, number, { size: 10, fill })}
  `;
}

// ---- every later δ comes back to the chosen token, in part: a ribbon's width is its weight ----

export function Fan(scene) {
  const { sample, token, to, acts, weights, post, row } = scene;
  if (token === null || !sample.mask[token] || !weights.length) return null;
  const ahead = acts.filter((i) => i >= token);
  const beyond = ahead.filter((i) => i >= to).length;
  return html`
    ${ahead.filter((i) => i < to).map((i, k) => ribbon(scene, i, k))}
    ${beyond ? said(post(to) - 4, row.fan + 34, `+${beyond} →`, { kind: "halo end quiet" }) : null}
    ${sumOf(scene)}
  `;
}

function ribbon({ token, d, weights, mid, row }, i, k) {
  const weight = weights[k];
  if (!has(weight)) return null;
  const x = mid(i);
  const x0 = mid(token);
  const top = row.fan + 14;
  const end = row.A - 20;
  const times = k === 0 ? "×1" : `×${figure(weight, { digits: 2 })}`;
  return html`
    <path
      d=${`M${x} ${top} C${x} ${top + 42} ${x0} ${top + 22} ${x0} ${end}`}
      class="ribbon" stroke=${tone(d[i])}
      stroke-width=${Math.max(0.7, 8 * weight)} stroke-opacity=${0.18 + 0.5 * weight}
    />
    ${said(x, top - 3, times, { kind: "halo", size: 11 })}
  `;
}

function sumOf({ token, a, mid, gap, row }) {
  const x0 = mid(token);
  const width = Math.min(gap, 108) - 4;
  const name = gap > 88 && !isKid.value ? `A${sub(token)} ` : "";
  return html`
    <rect x=${x0 - width / 2} y=${row.A - 17} width=${width} height="23" rx="6" class="sum" />
    ${said(x0, row.A, name + figureOf("advantages", a[token], { sign: true }), {
      id: "picture-A",
      bold: true,
      fill: tone(a[token]),
    })}
  `;
}

// ---- the edges, and where the pointer is ----

export function Edges({ sample, from, to, left, width, row, isNarrow }) {
  const y = row.box + (isNarrow ? 34 : 22); // below the caption, where that is near
  return html`
    ${from > 0 ? said(left - 8, y, `‹${from}`, { kind: "end quiet" }) : null}
    ${sample.length > to ? said(width - 4, y, `${sample.length - to}›`, { kind: "end quiet" }) : null}
  `;
}

export function Hits({ tokens, post, gap, row }) {
  return tokens.map(
    (i) => html`
      <rect
        x=${post(i)} y=${row.box - 3} width=${gap} height=${row.height - row.box}
        data-token=${i} class="hit"
      />
    `,
  );
}
