// What the steps add to the picture, each its own layer.

import { tone } from "../core/colour.js";
import { clamp, has } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { crowd, fits, touch, turn } from "./fit.js";
import { current, guessOf, isRevealed, pending, revealed } from "./tour_data.js";
import { shown } from "./tour_number.js";

// Beside the row, or above it where there is no room: the symbol, and what it is called.
function Caption({ scene, row, text, id }) {
  if (scene.narrow) {
    const said = isKid.value ? text : `${text} · ${t(`tour.row.${id}`)}`;
    return html`<text class="caption halo" x="4" y=${row.top - 2}>${said}</text>`;
  }
  const words = text.split(" ");
  const half = text.length > 14 ? Math.ceil(words.length / 2) : words.length;
  const name = isKid.value ? words.slice(half).join(" ") : t(`tour.row.${id}`);
  const y = (row.top + row.y) / 2 + 4 - (name ? 7 : 0);
  return html`
    <text class="caption" x="8" y=${y}>${words.slice(0, half).join(" ")}</text>
    <text class=${isKid.value ? "caption" : "small quiet ui"} x="8" y=${y + 14}>${name}</text>
  `;
}

// ---- V on posts ----

function postsOf({ cells, answer }) {
  const posts = [];
  cells.forEach((cell, n) => {
    posts.push({ x: cell.x, V: cell.V, i: cell.i });
    const next = cells[n + 1];
    if (!next) posts.push({ x: cell.end, V: answer.end ?? 0, isEnd: true });
    else if (cell.folded) posts.push({ x: cell.end, V: cell.after });
  });
  return posts;
}

// Each post with its number over the dot, or under it where it would touch the one before.
function labelled(posts, y) {
  const placed = [];
  for (const post of posts) {
    const label = { x: post.x, y: y(post.V) - 10, text: shown(post.V) };
    const last = placed.at(-1)?.label;
    if (last && touch(last, label)) label.y = y(post.V) + 20;
    placed.push({ ...post, label });
  }
  return placed;
}

export function Values({ scene, caption, fresh }) {
  const { rows, y, answer } = scene;
  const bottom = rows.V.y;
  return html`
    <g class=${`values ${fresh}`}>
      <rect class="band" x="2" y=${rows.V.top} width=${scene.width - 4} height=${rows.V.height} rx="8" />
      <${Caption} scene=${scene} row=${rows.V} text=${caption} id="V" />
      ${labelled(postsOf(scene), y).map(
        (post) => html`
          <g key=${post.x}>
            <rect class="post" x=${post.x - 2} y="4" width="4" height=${bottom - 6} rx="2" />
            <circle class=${post.isEnd ? "dot end" : "dot"} cx=${post.x} cy=${y(post.V)} r="5.5" />
            <text class="mid halo state" x=${post.x} y=${post.label.y}>${post.label.text}</text>
            ${
              post.isEnd
                ? html`<text class="mid small quiet halo" x=${post.x} y=${bottom - 3}>
                    ${t(answer.truncated ? "tour.cut" : "tour.over")}
                  </text>`
                : null
            }
          </g>
        `,
      )}
    </g>
  `;
}

// δ as an arrow from V before to r + γ·V after.
export function Surprises({ scene, marked, fresh }) {
  const { cells, y } = scene;
  return html`
    <g class=${fresh}>
      ${cells
        .filter(({ V, d }) => has(V) && has(d))
        .map((cell) => {
          const from = y(cell.V);
          const to = y(cell.V + cell.d);
          const strong = marked.includes(cell.i);
          return html`
          <g key=${cell.i}>
            <line class="level" x1=${cell.x + 7} x2=${cell.mid + 7} y1=${from} y2=${from} />
            <${Arrow} x=${cell.mid} from=${from} to=${to} fill=${tone(cell.d)} width=${strong ? 4 : 2.4} />
          </g>
        `;
        })}
    </g>
  `;
}

function Arrow({ x, from, to, fill, width, kind = "" }) {
  if (Math.abs(to - from) < 1.5) return null;
  const up = to < from ? 1 : -1;
  const size = Math.min(6, Math.abs(to - from));
  const base = to + up * size;
  return html`
    <g class=${kind}>
      <line x1=${x} x2=${x} y1=${from} y2=${base} stroke=${fill} stroke-width=${width} />
      <path d=${`M${x - 5} ${base} L${x} ${to} L${x + 5} ${base} Z`} fill=${fill} />
    </g>
  `;
}

// The critic's targets: diamonds on the posts.
export function Targets({ scene, caption, marked, fresh }) {
  const { cells, gap, y } = scene;
  // Between two posts: the number alone where its name has no room.
  const label = (number) =>
    fits(`${caption} ${number}`, gap - 16) ? `${caption} ${number}` : number;
  return html`
    <g class=${fresh}>
      ${cells
        .filter(({ R }) => has(R))
        .map(
          (cell) => html`
          <g key=${cell.i}>
            <${Diamond} x=${cell.x} y=${y(cell.R)} kind="target" />
            ${
              marked.includes(cell.i) && current.value?.id === "R"
                ? html`<text class="halo strong target-name" x=${cell.x + 8} y=${y(cell.R) + 20}>
                    ${label(shown(cell.R))}
                  </text>`
                : null
            }
          </g>
        `,
        )}
    </g>
  `;
}

const Diamond = ({ x, y, kind }) =>
  html`<path class=${kind} d=${`M${x} ${y - 6} l6 6 l-6 6 l-6 -6 Z`} />`;

// What the visitor guesses, drawn while the slider moves; it stays beside the truth.
export function Ghost({ scene }) {
  const step = current.value;
  if (step?.guess.kind !== "number") return null;
  const value = isRevealed.value ? guessOf(step) : pending.value;
  const cell = scene.cells.find(({ i }) => i === (step.tokens[0] ?? scene.cells[0].i));
  if (value === null || !cell || !has(cell.V)) return null;
  const { y } = scene;
  if (step.id === "V") return html`<circle class="ghost" cx=${cell.x} cy=${y(value)} r="6" />`;
  if (step.id === "R") return html`<${Diamond} x=${cell.x} y=${y(value)} kind="ghost" />`;
  if (step.id !== "d") return null;
  const tip = y(cell.V + value);
  return html`<${Arrow} x=${cell.mid + 14} from=${y(cell.V)} to=${tip} fill="var(--quiet)" width="2"
    kind="ghost-arrow" />`;
}

// ---- one number per token ----

const SIGNED = ["r", "d", "A", "W"];
const TALLEST = 12; // of a bar, px

// A bar up or down, left of its number.
function Bar({ x, y, value, top }) {
  const height = value === 0 ? 0 : Math.max(1.5, (Math.abs(value) / top) * TALLEST);
  return html`
    <line class="base" x1=${x - 2} x2=${x + 9} y1=${y} y2=${y} />
    <rect x=${x} width="7" y=${value < 0 ? y : y - height} height=${height} fill=${tone(value)} />
  `;
}

export function Row({ scene, name, unit, caption, fresh }) {
  const { cells, rows, gap, answer } = scene;
  const row = rows[name];
  const middle = (row.top + row.y) / 2;
  const top = Math.max(1e-9, ...cells.map((cell) => Math.abs(cell[name] ?? 0)));
  const hasBars = !scene.narrow && (name === "r" || name === "d");
  const sign = SIGNED.includes(name);
  const limits = name === "rho" ? answer.limits : null;
  const isOut = (x) => limits && (x < limits[0] || x > limits[1]);
  const known = cells.filter((cell) => has(cell[name]));
  const write = (cell) => shown(cell[name], { unit, sign });
  const crowded = scene.narrow && crowd(known.map(write), gap);
  return html`
    <g class=${`row row-${name} ${fresh}`}>
      <${Caption} scene=${scene} row=${row} text=${caption} id=${name} />
      ${known.map(
        (cell, n) => html`
          <g key=${cell.i} data-cell=${`${name}-${cell.i}`}>
            ${hasBars && html`<${Bar} x=${cell.mid - gap / 2 + 5} y=${middle} value=${cell[name]} top=${top} />`}
            <text class=${isOut(cell[name]) ? "mid out" : "mid"} x=${cell.mid + (hasBars ? 6 : 0)} y=${middle + 4 + turn(crowded, n)}
              style=${sign && cell[name] !== 0 ? { fill: tone(cell[name]) } : null}>
              ${write(cell)}
            </text>
          </g>
        `,
      )}
    </g>
  `;
}

// ---- later δ come back to one token ----

export function Arcs({ scene, caption, fresh }) {
  const { cells, rows, answer } = scene;
  const home = cells.find(({ i }) => i === answer.anchor);
  if (!home) return null;
  const ahead = cells.filter(({ i, weight }) => i >= answer.anchor && has(weight));
  const write = ({ weight }) => shown(weight, { unit: "percent" });
  const crowded = scene.narrow && crowd(ahead.map(write), scene.gap);
  const top = rows.arcs.top + (crowded ? 24 : 12);
  const end = rows.arcs.y - 4;
  const beyond = ahead.reduce((sum, cell) => sum + cell.folded, 0);
  return html`
    <g class=${`arcs ${fresh}`}>
      ${scene.narrow ? null : html`<${Caption} scene=${scene} row=${rows.arcs} text=${caption} id="lam" />`}
      ${ahead.map(
        (cell, n) => html`
          <g key=${cell.i}>
            ${
              cell.weight > 0
                ? html`<path d=${`M${cell.mid} ${top} C${cell.mid} ${top + 38} ${home.mid} ${top + 20} ${home.mid} ${end}`}
                    class="arc" stroke=${tone(cell.d)} stroke-width=${clamp(9 * cell.weight, 0.8, 9)}
                    stroke-opacity=${0.2 + 0.45 * cell.weight} />`
                : null
            }
            <text class="mid halo small" x=${cell.mid} y=${top - 1 - (crowded && n % 2 === 0 ? 12 : 0)}>
              ${write(cell)}
            </text>
          </g>
        `,
      )}
      ${beyond ? html`<text class="small quiet" x=${scene.width - 4} y=${end} text-anchor="end">${t("tour.more", { n: beyond })}</text>` : null}
      ${revealed.value.has("A") ? html`<rect class="sum" x=${home.mid - scene.gap / 2 + 3} y=${rows.A.top} width=${scene.gap - 6} height=${rows.A.height - 4} rx="6" />` : null}
    </g>
  `;
}
