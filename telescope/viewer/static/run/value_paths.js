// V along right and wrong answers of the shown step: the mean, and a band of one σ to either side.

import { step, stepShown } from "../core/data.js";
import { num } from "../core/number.js";
import { Panel } from "../core/parts.js";
import { isKid, t } from "../core/text.js";
import { html } from "../vendor/preact.js";

const WIDE = 520;
const HIGH = 190;
const LEFT = 40;
const RIGHT = 24;
const FLOOR = 34;
const ROOF = 8;
const LINE = 14; // of text: marks of the axis that are closer would overprint
const SIDES = ["right", "wrong"];

// The lowest and the highest number of all bands.
function rangeOf(sides) {
  const ends = sides.flatMap(({ mean, spread }) =>
    mean.flatMap((m, i) => [m - spread[i], m + spread[i]]),
  );
  const low = Math.min(0, ...ends);
  const high = Math.max(...ends);
  return [low, high > low ? high : low + 1];
}

const joined = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" ");

function bandOf({ mean, spread }, X, Y) {
  const above = mean.map((m, i) => [X(i), Y(m + spread[i])]);
  const below = mean.map((m, i) => [X(i), Y(m - spread[i])]).reverse();
  return joined([...above, ...below]);
}

const digits = () => (isKid.value ? 1 : 3);

export function ValuePaths() {
  const paths = step.value?.paths;
  const there = SIDES.filter((name) => paths?.[name]?.count);
  if (!there.length) return null;
  return html`
    <${Panel} id="paths" title=${t("run.paths", { n: stepShown.value })}>
      <div class="paths-box">
        <${Picture} paths=${paths} there=${there} />
        <div>
          <ul class="chart-legend">
            ${there.map((name) => html`<${Entry} key=${name} name=${name} path=${paths[name]} />`)}
          </ul>
          <p class="meaning">${t("run.paths_why")}</p>
        </div>
      </div>
    </${Panel}>
  `;
}

function saidOf(name, { count, mean }) {
  const from = num(mean[0], { digits: digits() });
  const to = num(mean.at(-1), { digits: digits() });
  return t(`run.paths_${name}`, { n: count, from, to });
}

function Entry({ name, path }) {
  return html`<li class=${`path ${name}`} data-path=${name}>
    <svg class="line-swatch" width="22" height="8" aria-hidden="true"><line x1="0" x2="22" y1="4" y2="4" /></svg>
    ${saidOf(name, path)}
  </li>`;
}

function Picture({ paths, there }) {
  const sides = there.map((name) => paths[name]);
  const points = sides[0].mean.length;
  const [low, high] = rangeOf(sides);
  const X = (i) => LEFT + (i / Math.max(points - 1, 1)) * (WIDE - LEFT - RIGHT);
  const Y = (v) => HIGH - FLOOR - ((v - low) / (high - low)) * (HIGH - FLOOR - ROOF);
  const said = there.map((name) => saidOf(name, paths[name])).join("; ");
  const parts = [0, Math.floor(points / 2), points - 1];
  const marks = [0, low, high].filter(
    (v, n, all) => !all.slice(0, n).some((kept) => Math.abs(Y(kept) - Y(v)) < LINE),
  );
  return html`
    <svg viewBox=${`0 0 ${WIDE} ${HIGH}`} role="img" aria-label=${said}>
      ${marks.map(
        (v) => html`<g key=${v}>
          <line class="zero" x1=${LEFT} x2=${WIDE - RIGHT} y1=${Y(v)} y2=${Y(v)} />
          <text x=${LEFT - 5} y=${Y(v) + 4} text-anchor="end">${num(v, { digits: isKid.value ? 1 : 2 })}</text>
        </g>`,
      )}
      ${parts.map(
        (i) =>
          html`<text key=${i} x=${X(i)} y=${HIGH - 18} text-anchor="middle">${i * 10} %</text>`,
      )}
      <text x=${(LEFT + WIDE) / 2} y=${HIGH - 3} text-anchor="middle">${t("run.paths_axis")}</text>
      ${there.map(
        (name) => html`<g key=${name} class=${`path ${name}`}>
        <polygon class="band" points=${bandOf(paths[name], X, Y)} />
        <polyline points=${joined(paths[name].mean.map((m, i) => [X(i), Y(m)]))} />
        ${paths[name].mean.map(
          (m, i) => html`<circle key=${i} cx=${X(i)} cy=${Y(m)} r="2.4">
            <title>${`${i * 10} %: ${num(m, { digits: digits() })}`}</title>
          </circle>`,
        )}
      </g>`,
      )}
    </svg>
  `;
}
