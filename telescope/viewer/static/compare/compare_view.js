// Compare: one prompt through training, two runs or settings, distributions, the critic.

import { run, step } from "../core/data.js";
import { Loaded, Segment } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { Calibration } from "./calibration.js";
import { Distributions } from "./distributions.js";
import { PromptThroughTraining } from "./prompt_steps.js";
import { SideBySide } from "./side_by_side.js";

const PARTS = {
  prompt: PromptThroughTraining,
  runs: SideBySide,
  distributions: Distributions,
  calibration: Calibration,
};

export function CompareView() {
  const isEmpty = run.value && !run.value.ledger?.length;
  if (isEmpty) return html`<p class="quiet">${t("samples.nothing")}</p>`;
  const Part = PARTS[state.compare.value];
  return html`
    <div class="bar">
      <${Segment}
        id="compare" label=${t("compare.parts")}
        options=${Object.keys(PARTS).map((part) => [part, t(`compare.${part}`)])}
        value=${state.compare.value}
        choose=${(compare) => go({ compare, bin: null })}
      />
    </div>
    <${Loaded} from=${step}>${(found) => html`<${Part} found=${found} />`}</${Loaded}>
  `;
}
