// Which quantity colours the tokens, and what its colours mean: one scale for the whole run.

import { colour, isDark, isOffScale, scaleOf } from "../core/colour.js";
import { Segment } from "../core/parts.js";
import { go } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { figure, figureOf } from "../token/figure.js";
import { isClipped, isFlipped, quantitiesOf, quantityShown, symbolOf } from "../token/view.js";
import { html } from "../vendor/preact.js";
import { viewOf } from "../whatif/whatif.js";

const STRIPES = 40;
const WIDTH = 200;
const FOR_EXPERTS = ["kl", "ratio"];
const NEVER_NEGATIVE = new Set(["entropy"]);

const edgeOf = (quantity, part) => {
  const x = part * scaleOf(quantity);
  if (quantity === "ratio") return figure(1 + x, { digits: 2 });
  const sign = !NEVER_NEGATIVE.has(quantity);
  return part === 0 ? "0" : figureOf(quantity, x, { sign, digits: 2 });
};

// The signs that some token of the sample has.
function marksOf(sample) {
  const { columns } = viewOf(sample);
  const some = {
    clipped: sample.mask.some((_, i) => isClipped(sample, columns, i)),
    flipped: sample.mask.some((_, i) => isFlipped(columns, i)),
    tool: sample.mask.includes(0),
  };
  return Object.keys(some).filter((name) => some[name]);
}

export function Legend({ sample }) {
  const quantity = quantityShown(sample);
  if (!sample.columns[quantity]?.length) return null;
  isDark.value;
  const wide = WIDTH / STRIPES;
  const edges = NEVER_NEGATIVE.has(quantity) ? [0, 0.5, 1] : [-1, -0.5, 0, 0.5, 1];
  const [low] = edges;
  const along = (part) => (part - low) / (1 - low); // 0 at the left end, 1 at the right one
  const stripes = Array.from(
    { length: STRIPES },
    (_, k) => low + (1 - low) * ((k + 0.5) / STRIPES),
  );
  const said = edges.map((part) => edgeOf(quantity, part));
  return html`
    <span id="legend" class="legend" title=${t("reader.scale")}>
      <svg viewBox=${`0 0 ${WIDTH + 40} 24`} role="img" aria-label=${`${symbolOf(quantity)} ${said.join(" … ")}`}>
        ${stripes.map(
          (part, k) => html`<rect
            x=${20 + k * wide} width=${wide + 0.3} height="9" fill=${colour(part)}
          />`,
        )}
        ${edges.map(
          (part, k) =>
            html`<text x=${20 + along(part) * WIDTH} y="21" text-anchor="middle">${said[k]}</text>`,
        )}
      </svg>
      <span class="means">${t(`reader.means.${quantity}`)}</span>
      <${Beyond} sample=${sample} quantity=${quantity} />
      <${Marks} sample=${sample} />
    </span>
  `;
}

// Tokens beyond the ends of the scale, whose colours say nothing about how far.
function Beyond({ sample, quantity }) {
  const numbers = viewOf(sample).columns[quantity] ?? [];
  const isBeyond = (x, i) => sample.mask[i] && isOffScale(quantity, x);
  const n = Array.from(numbers).filter(isBeyond).length;
  return n ? html`<span id="beyond">${t("reader.beyond", { n })}</span>` : null;
}

function Marks({ sample }) {
  return marksOf(sample).map((name) => html`<span key=${name}>${t(`reader.mark.${name}`)}</span>`);
}

export function ColourChoice({ sample }) {
  const there = quantitiesOf(sample);
  const shown = isKid.value ? there.filter((name) => !FOR_EXPERTS.includes(name)) : there;
  return html`
    <span class="field">
      <span>${t("reader.colour")}</span>
      <${Segment}
        id="colour" label=${t("reader.colour")}
        options=${shown.map((name) => [name, symbolOf(name), `${symbolOf(name)}: ${t(`reader.means.${name}`)}`])}
        value=${quantityShown(sample)}
        choose=${(colour) => go({ colour })}
      />
      ${there.includes("entropy") ? null : html`<${NoEntropy} />`}
    </span>
  `;
}

// Runs from before the ledger had the column, and trainers that do not write it.
function NoEntropy() {
  const why = `${symbolOf("entropy")}: ${t("reader.no_entropy")}`;
  return html`
    <button id="no-entropy" type="button" disabled title=${why} aria-label=${why}>
      ${symbolOf("entropy")}
    </button>
  `;
}
