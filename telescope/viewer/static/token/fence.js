// The fence picture: V on the posts, everything that belongs to a token in its gap.

import { isDark } from "../core/colour.js";
import { num } from "../core/number.js";
import { Panel, Toggle } from "../core/parts.js";
import { isKid, t } from "../core/text.js";
import { oneLine } from "../core/token_text.js";
import { useInSight, useWidth } from "../core/width.js";
import { html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { settingsShown, viewOf } from "../whatif/whatif.js";
import { lens, tokenPanel, tokenSeen } from "./chosen.js";
import { Audited, auditRule } from "./fence_audit.js";
import { Boxes, Edges, Fan, Hits, Numbers } from "./fence_numbers.js";
import { sceneOf } from "./fence_scene.js";
import { Arrows, Bands, BeforeAndAfter, Captions, Posts, Values } from "./fence_values.js";
import { scoreOf } from "./figure.js";
import { saveSvg } from "./save_svg.js";
import { TokenTable } from "./token_table.js";

const PARTS = [
  Bands,
  Captions,
  Posts,
  Arrows,
  Values,
  BeforeAndAfter,
  Numbers,
  Boxes,
  Fan,
  Edges,
  Hits,
  Audited, // above the hits, for its hover text
]; // back to front
// They stay as they are while γ or λ is dragged.
const STILL = [Bands, Captions, Posts, BeforeAndAfter, Edges, Hits];

// Every part's picture. The same object is not drawn anew.
function usePicture(scene) {
  const { sample, token, width, from, to, changed, weights } = scene;
  const isThin = weights.some((weight) => weight < 1);
  const draw = (Part) => html`<${Part} ...${scene} />`;
  const still = useMemo(
    () => new Map(STILL.map((Part) => [Part, draw(Part)])),
    [sample, token, width, from, to, changed, weights.length > 0, isThin],
  );
  return PARTS.map((Part) => still.get(Part) ?? draw(Part));
}

export function Fence({ sample }) {
  const box = useRef(null);
  const before = useRef(0);
  const width = useWidth(box);
  const [asTable, setAsTable] = useState(false);
  const token = tokenSeen.value;
  isDark.value; // the boxes' colours change with it
  const view = viewOf(sample, { isSeen: useInSight(box) });
  const scene = sceneOf({ sample, view, token, width, before: before.current });
  const { from, to, row } = scene;
  const picture = usePicture(scene);
  useLayoutEffect(() => {
    before.current = from;
    if (lens.peek().from !== from || lens.peek().to !== to) lens.value = { from, to };
  }, [from, to]);
  const bar = html`
    <${About} sample=${sample} />
    <span class="spring"></span>
    <button
      id="save-svg" type="button"
      onClick=${() => saveSvg(box.current.querySelector("svg"), nameOf(sample, token))}
    >
      ${t("token.save")}
    </button>
    <${Toggle} id="as-table" isOn=${asTable} press=${() => setAsTable(!asTable)}>
      ${t("token.table")}
    </${Toggle}>
  `;
  return html`
    <${Panel} id="fence" title=${t("token.fence")} bar=${bar}>
      <p class="rule">${t("token.rule")}</p>
      ${auditRule(sample)}
      <div id="picture" ref=${box} role="group" aria-label=${t("token.picture")} ...${tokenPanel}>
        <svg viewBox=${`0 0 ${width} ${row.height}`} height=${row.height} aria-hidden="true">
          ${picture}
        </svg>
      </div>
      <div class=${asTable ? "scroll shown" : "scroll sr"}>
        <${TokenTable} sample=${sample} token=${token} columns=${view.columns} isShown=${asTable} />
      </div>
    </${Panel}>
  `;
}

const nameOf = (sample, token) => `token-${sample.step}-${sample.position}-${token ?? 0}.svg`;

function About({ sample }) {
  return html`<span id="about" class="quiet">${aboutSample(sample)}</span>`;
}

function aboutSample(sample) {
  const score = `${t("token.score")} ${scoreOf(sample.score)}`;
  const place = `#${sample.position} · ${score}`;
  if (isKid.value) return place;
  const { label, gamma, lam, kl_coef } = settingsShown(sample);
  const by =
    lam === null ? `${t("token.estimator")} ${oneLine(label, 24)}` : `λ ${num(lam, { digits: 2 })}`;
  return `${place} · ${by} γ ${num(gamma, { digits: 2 })} β ${num(kl_coef)}`;
}
