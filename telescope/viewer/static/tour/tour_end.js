// The last card: what was learned in one list, and where to go on.

import { go } from "../core/state.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { forget, guessOf, isExample, isRight, say, steps } from "./tour_data.js";

function again() {
  forget();
  go({ stop: 0 });
}

export function TourEnd({ leave }) {
  const said = steps.value.filter((step) => guessOf(step) !== null);
  const good = said.filter((step) => isRight(step, guessOf(step)));
  const count = { good: good.length, all: said.length };
  return html`
    <h2 id="tour-title">${t("tour.end")}</h2>
    ${said.length ? html`<p id="tour-count">${t("tour.count", count)}</p>` : null}
    <dl class="tour-list">
      ${steps.value.map(
        ({ id, symbol }) => html`
          <dt key=${id}>${say(symbol)}</dt>
          <dd>${t(`tour.means.${id}`)}</dd>
        `,
      )}
    </dl>
    <div class="tour-buttons">
      <button type="button" onClick=${again}>${t("tour.again")}</button>
      <button type="button" class="tour-main" data-first="1" onClick=${leave}>
        ${t(isExample.value ? "tour.toRun" : "tour.toTokens")}
      </button>
    </div>
  `;
}
