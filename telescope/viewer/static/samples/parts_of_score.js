// What a score is made of: the run's reward functions, each with its weight.

import { run, step } from "../core/data.js";
import { has } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { scoreOf } from "../token/figure.js";
import { html } from "../vendor/preact.js";

// Parts that say something besides the score: [[name, number]].
function partsOf(sample) {
  const parts = Object.entries(sample.parts ?? {});
  const says = parts.length > 1 || parts.some(([, x]) => x !== sample.score);
  return says ? parts : [];
}

// 0.9 and not 0.900
const weightText = (x) => String(Number(x.toPrecision(3))).replace("-", "−");

// Where a reward function stands, as the run's settings name it: "recipes/gsm8k.py:form".
function sourceOf(name) {
  const setting = run.value?.config?.find(({ key }) => key === "reward.functions");
  const listed = String(setting?.value ?? "").match(/"[^"]*"/g) ?? [];
  return listed.map((each) => each.slice(1, -1)).find((each) => each.endsWith(`:${name}`)) ?? name;
}

function whyOf(name, x, weight) {
  const source = sourceOf(name);
  if (!has(weight)) return t("reader.part.unweighed", { source, x: scoreOf(x) });
  return t("reader.part.why", { source, x: scoreOf(x), weight: weightText(weight) });
}

// Weights are there where the weighed parts add up to every recorded score of the step.
export function Parts({ sample }) {
  const parts = partsOf(sample);
  if (!parts.length) return null;
  const weights = step.value?.part_weights ?? {};
  const isSum = !isKid.value && parts.every(([name]) => has(weights[name]));
  const one = ([name, x], k) => html`
    ${isSum ? html`<span class="quiet">${k ? "+" : "="}</span>` : null}
    <span key=${name} class="part" data-part=${name} title=${whyOf(name, x, weights[name])}>
      ${isSum ? html`<span class="mono">${weightText(weights[name])}</span> × ` : null}
      ${name} <b class="mono">${scoreOf(x)}</b>
    </span>
  `;
  return html`
    <span id="parts" class="parts">
      ${parts.map(one)}
      ${isSum ? html`<span class="quiet">${t("reader.parts")}</span>` : null}
    </span>
  `;
}
