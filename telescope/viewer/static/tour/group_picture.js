// Without a critic: the answers to one prompt as dots, with what they are compared with.

import { clamp, has } from "../core/number.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { revealed, tour } from "./tour_data.js";
import { shown } from "./tour_number.js";

const WIDTH = 420;
const HEIGHT = 92;
const LINE = 50;
const EDGE = 30;

export function GroupPicture() {
  const { outcomes, b, scale } = tour.value.group ?? { outcomes: [] };
  if (!revealed.value.has("o") || !outcomes.length) return null;
  const showsB = has(b) && revealed.value.has("b");
  const showsScale = has(scale) && revealed.value.has("sigma");
  const edges = [...outcomes, showsB ? b : outcomes[0], 0, 1];
  const low = Math.min(...edges);
  const high = Math.max(...edges);
  const x = (value) => EDGE + ((value - low) / (high - low || 1)) * (WIDTH - 2 * EDGE);
  // Equal outcomes are stacked.
  const place = outcomes.map((o, n) => outcomes.slice(0, n).filter((p) => p === o).length);
  return html`
    <figure class="tour-group">
      <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${t("tour.group")}>
        <line class="axis" x1=${EDGE} x2=${WIDTH - EDGE} y1=${LINE} y2=${LINE} />
        ${
          showsScale
            ? html`<rect class="fresh spread" x=${x(b - scale)} y=${LINE - 6}
                width=${x(b + scale) - x(b - scale)} height="12" />`
            : null
        }
        ${
          showsB
            ? html`<g class="fresh">
                <line class="mean" x1=${x(b)} x2=${x(b)} y1="12" y2=${LINE + 10} />
                <text class="mid" x=${x(b)} y=${LINE + 24}>${t("tour.b")} ${shown(b)}</text>
              </g>`
            : null
        }
        ${outcomes.map(
          (o, n) => html`
            <circle key=${n} class=${n ? "dot" : "dot mine"} cx=${x(o)} cy=${LINE - 9 * place[n]}
              r=${n ? 5 : 7} />
          `,
        )}
        <text class="mid quiet" x=${clamp(x(outcomes[0]), 70, WIDTH - 70)} y=${HEIGHT - 4}>
          ${t("tour.mine")} ${shown(outcomes[0])}
        </text>
      </svg>
      <figcaption class="quiet">${t("tour.group")}</figcaption>
    </figure>
  `;
}
