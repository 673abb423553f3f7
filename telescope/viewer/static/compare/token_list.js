// The tokens of a bin, as links that open them.

import { columns, stepShown } from "../core/data.js";
import { addressOf, go } from "../core/state.js";
import { t } from "../core/text.js";
import { groupOf, visible } from "../core/token_text.js";
import { ofAllPrompts } from "../samples/choose_rows.js";
import { html } from "../vendor/preact.js";
import { placeOf } from "./bins.js";
import { samplePath, useAnswer } from "./loaded.js";

const MOST = 40;

// `tokens`: indices in the flat columns. `show(i)`: what to say about one.
export function TokenList({ tokens, title, show }) {
  const places = tokens.slice(0, MOST).map((i) => ({ i, ...placeOf(columns.value.offsets, i) }));
  return html`
    <div id="bin-tokens" class="bin-tokens" role="region" aria-label=${title} aria-live="polite">
      <div class="bar">
        <b>${title}</b>
        ${tokens.length > MOST ? html`<span class="quiet">${t("compare.first", { n: MOST })}</span>` : null}
        <button type="button" class="small" onClick=${() => go({ bin: null })}>${t("compare.close")}</button>
      </div>
      <ol>
        ${places.map((place) => html`<${TokenLink} key=${place.i} place=${place} said=${show(place.i)} />`)}
      </ol>
    </div>
  `;
}

function TokenLink({ place, said }) {
  const { position, token } = place;
  const step = stepShown.value;
  const { value } = useAnswer(samplePath({ step, position }));
  const word =
    value && token < value.token_ids.length ? visible(groupOf(value, token).text, 20) : "…";
  const changes = { view: "samples", step, sample: position, token, bin: null, ...ofAllPrompts() };
  function open(event) {
    event.preventDefault();
    go(changes);
  }
  return html`
    <li>
      <a href=${addressOf(changes)} data-sample=${position} data-token=${token} onClick=${open}>
        <b>${word}</b> <span class="quiet">#${position} i=${token}</span>
        <span class="mono">${said}</span>
      </a>
    </li>
  `;
}
