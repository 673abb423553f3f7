// The picture of the tour: posts with V, and in the gaps what belongs to a token. It grows by a row
// or a mark with every step.

import { colour, ink } from "../core/colour.js";
import { has } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { useWidth } from "../core/width.js";
import { html, useRef } from "../vendor/preact.js";
import { boxText, leftOut } from "./fit.js";
import { Arcs, Ghost, Row, Surprises, Targets, Values } from "./layers.js";
import { current, isRevealed, revealed, say, stepIndex, steps, tour } from "./tour_data.js";
import { shown } from "./tour_number.js";

const NARROW = 620; // below, captions stand above the rows
const PAD = { wide: 112, narrow: 6 };
const RIGHT = 30;
const FOLD = 0.62; // width of "17 more", in gaps
const BOX = 38;

// ---- where everything is ----

function across(answer, width) {
  const narrow = width < NARROW;
  const skipped = answer.skipped ? FOLD : 0;
  const units = answer.cells.reduce((sum, cell) => sum + 1 + (cell.folded ? FOLD : 0), skipped);
  const left = narrow ? PAD.narrow + 12 : PAD.wide;
  const gap = Math.min(104, (width - left - RIGHT) / units);
  let x = left + skipped * gap;
  const cells = answer.cells.map((cell) => {
    const placed = { ...cell, x, mid: x + gap / 2, end: x + gap };
    x += gap * (1 + (cell.folded ? FOLD : 0));
    return placed;
  });
  return { cells, gap, left, narrow, width, fold: FOLD * gap };
}

// The rows that are there, from top to bottom, with their y.
function down(is, narrow) {
  const caption = narrow ? 13 : 0;
  const wanted = [
    ["box", BOX + 8, true],
    ["V", narrow ? 140 : 164, is("V")],
    ["r", narrow ? 32 : 36, is("r")],
    ["d", narrow ? 32 : 36, is("d")],
    ["arcs", 74, is("lam")],
    ["A", narrow ? 30 : 36, is("A") || is("gA")],
    ["W", narrow ? 28 : 36, is("W")],
    ["rho", narrow ? 28 : 36, is("rho")],
  ];
  let y = 4;
  const rows = {};
  for (const [name, height, wants] of wanted) {
    if (!wants) continue;
    const above = name === "box" || name === "arcs" ? 0 : caption;
    rows[name] = { top: y + above, height, y: y + above + height };
    y += height + above;
  }
  return { rows, height: y + 6 };
}

// y of a value between the lowest and the highest number that the plot will ever show.
function axis(cells, row, end) {
  if (!row) return null;
  const seen = cells.flatMap(({ V, R, d }) => [V, R, has(d) ? V + d : V]).filter(has);
  seen.push(end ?? 0);
  let low = Math.min(...seen);
  let high = Math.max(...seen);
  if (high - low < 1e-6) [low, high] = [low - 0.5, high + 0.5];
  const top = row.top + 26;
  const bottom = row.y - 28;
  return (value) => {
    const part = (value - low) / (high - low);
    return bottom - Math.max(-0.08, Math.min(1.08, part)) * (bottom - top);
  };
}

// ---- parts ----

function Boxes({ scene, answer, marked, choose, can }) {
  const { cells, gap } = scene;
  const name = revealed.value.has("W") ? "W" : "A";
  const shows = revealed.value.has("A") || revealed.value.has("gA");
  const top = Math.max(
    ...tour.value.answers.flatMap((a) => a.cells.map((c) => Math.abs(c[name] ?? 0))),
  );
  return cells
    .map((cell) => {
      const strength = shows && has(cell[name]) && top > 0 ? cell[name] / top : null;
      const isMarked = marked.includes(cell.i);
      const pick = can.includes(cell.i);
      const label = boxText(cell.text, gap - 10);
      return html`
      <g key=${cell.i} class=${`token ${isMarked ? "marked" : ""} ${pick ? "pick" : ""}`}
        data-token=${cell.i} onClick=${pick ? () => choose(cell.i) : null}>
        <rect class="box" x=${cell.x + 3} y="6" width=${gap - 6} height=${BOX - 8} rx="5"
          style=${strength === null ? null : { fill: colour(strength) }} />
        <text class=${label.tight ? "mid word tight" : "mid word"} x=${cell.mid} y=${BOX / 2 + 8}
          style=${strength === null ? null : { fill: ink(strength) }}
          textLength=${label.length} lengthAdjust="spacingAndGlyphs">${label.text}</text>
        ${
          cell.folded
            ? html`<text class="mid quiet small" x=${cell.end + scene.fold / 2} y=${BOX / 2 + 7}>${leftOut(cell.folded, scene.fold)}</text>`
            : null
        }
        ${cell.tool ? html`<text class="mid small" x=${cell.end} y="13">🔧</text>` : null}
        ${cell.clipped && revealed.value.has("rho") ? html`<text class="mid scissors" x=${cell.x + 14} y="26" style=${strength === null ? null : { fill: ink(strength) }}>✂</text>` : null}
        <title>${cell.text} · i = ${cell.i}</title>
      </g>
    `;
    })
    .concat(
      answer.skipped
        ? [
            html`<text key="skipped" class="mid quiet small" x=${scene.cells[0].x - scene.fold / 2 - 2} y=${BOX / 2 + 7}>${leftOut(answer.skipped, scene.fold)}</text>`,
          ]
        : [],
    );
}

function AnswerPicture({ answer, who, width, choose }) {
  const is = (id) => revealed.value.has(id) && (who === 0 || ["A", "gA", "W", "rho"].includes(id));
  const scene = across(answer, width);
  const { rows, height } = down(is, scene.narrow);
  const step = current.value;
  const isAbout = step !== null && step.who === who;
  const marked = isAbout ? step.tokens : [];
  const asks = step !== null && !isRevealed.value;
  const can = asks && who === 0 ? (step.guess.options ?? []).map((each) => each.token) : [];
  const made = { ...scene, rows, height, answer, y: axis(scene.cells, rows.V, answer.end) };
  const fresh = (id) => (isRevealed.value && step?.id === id ? "fresh" : "");
  const caption = (id) => say(steps.value.find((each) => each.id === id)?.symbol ?? { [id]: id });
  const row = (id, name, unit) =>
    rows[name] &&
    html`<${Row} scene=${made} name=${name} unit=${unit} caption=${caption(id)} fresh=${fresh(id)} />`;
  return html`
    <svg class="tour-svg" width=${width} height=${height} role="img" aria-label=${spoken(answer, is)}>
      ${rows.V && html`<${Values} scene=${made} caption=${caption("V")} fresh=${fresh("V")} />`}
      ${rows.V && rows.d && html`<${Surprises} scene=${made} marked=${marked} fresh=${fresh("d")} />`}
      ${rows.V && is("R") && html`<${Targets} scene=${made} caption=${caption("R")} marked=${marked} fresh=${fresh("R")} />`}
      ${row("r", "r", "points")} ${row("d", "d", "points")}
      ${rows.arcs && html`<${Arcs} scene=${made} caption=${caption("lam")} fresh=${fresh("lam")} />`}
      ${row(tour.value.kind === "critic" ? "A" : "gA", "A", "points")}
      ${row("W", "W", "plain")} ${row("rho", "rho", "factor")}
      ${marked.map((i) => html`<${Mark} key=${i} scene=${made} token=${i} />`)}
      ${rows.V && who === 0 && html`<${Ghost} scene=${made} />`}
      <${Boxes} scene=${made} answer=${answer} marked=${marked} choose=${choose} can=${can} />
    </svg>
  `;
}

function Mark({ scene, token }) {
  const cell = scene.cells.find((each) => each.i === token);
  if (!cell) return null;
  return html`<rect class="mark" x=${cell.x} y="2" width=${scene.gap} height=${scene.height - 4} rx="6" />`;
}

// The picture for a screen reader: each token with the numbers that are shown.
function spoken(answer, is) {
  const names = [
    ["V", "V", "points"],
    ["r", "r", "points"],
    ["d", "d", "points"],
    ["A", "A", "points"],
    ["R", "R", "points"],
    ["W", "W", "plain"],
    ["rho", "rho", "factor"],
  ].filter(([id]) => is(id));
  const one = (cell) => {
    const numbers = names.map(([id, column, unit]) => {
      const step = steps.value.find((each) => each.id === id);
      return `${say(step.symbol)} ${shown(cell[column], { unit })}`;
    });
    return [cell.text, ...numbers].join(", ");
  };
  return answer.cells.map(one).join("; ");
}

function Score({ answer }) {
  if (!has(answer.score)) return null;
  const sign = answer.right ? "✓" : "✗";
  const key = answer.truncated ? "tour.scoreCut" : "tour.score";
  return html`<span class=${answer.right ? "tour-score good" : "tour-score bad"}>
    ${sign} ${t(key, { score: shown(answer.score) })}
  </span>`;
}

export function Picture({ choose }) {
  const box = useRef(null);
  const width = useWidth(box, 280);
  // The second answer joins where they are compared.
  const joins = steps.value.findIndex((step) => step.id === "W");
  const second = joins >= 0 && stepIndex.value >= joins;
  const answers = tour.value.answers.slice(0, second ? 2 : 1);
  return html`
    <div ref=${box} class=${isKid.value ? "tour-pictures kid" : "tour-pictures"}>
      ${answers.map(
        (answer, who) => html`
          <div key=${who} class=${who ? "fresh" : ""}>
            <p class="tour-name">
              <span class="quiet">${t(who ? "tour.second" : "tour.answer")}</span> <${Score} answer=${answer} />
            </p>
            ${
              who && answer.prompt && answer.prompt !== tour.value.prompt
                ? html`<p class="tour-prompt" id="tour-second">
                    <span class="quiet">${t("tour.otherPrompt")}</span> ${answer.prompt}
                  </p>`
                : null
            }
            <${AnswerPicture} answer=${answer} who=${who} width=${width} choose=${choose} />
          </div>
        `,
      )}
    </div>
  `;
}
