// The chosen token, term by term: recorded, recomputed, and whether they agree.

import { Panel, Trouble } from "../core/parts.js";
import { isKid, lang, t } from "../core/text.js";
import { groupOf, hex, visible } from "../core/token_text.js";
import { useInSight } from "../core/width.js";
import { html, useRef, useState } from "../vendor/preact.js";
import { viewOf } from "../whatif/whatif.js";
import { tokenSeen } from "./chosen.js";
import { Equation } from "./equation.js";
import { isCurrent, terms } from "./terms_data.js";
import { isFlipped } from "./view.js";
import { WhatIfTerms } from "./whatif_terms.js";

export function TermsPanel({ sample }) {
  const box = useRef(null);
  const view = viewOf(sample, { isSeen: useInSight(box) });
  const token = tokenSeen.value;
  const name = token === null ? "" : nameOf(sample, token);
  return html`
    <${Panel} id="token" title=${t("token.title")} bar=${html`<span id="token-name">${name}</span>`}>
      <div id="traces" class="traces" aria-live="polite" ref=${box}>
        ${token === null ? html`<p class="quiet">${t("token.hint")}</p>` : termsOf(sample, token, view)}
      </div>
    </${Panel}>
  `;
}

function nameOf(sample, i) {
  const group = groupOf(sample, i);
  const isSplit = group.to - group.from > 1;
  const bytes = isSplit ? `  [${hex(sample.token_bytes[i])}]` : "";
  const word = visible(group.text, 24) || "∅";
  if (isKid.value) return word + bytes;
  return `i = ${i}  ${word}  (id ${sample.token_ids[i]})${bytes}`;
}

function termsOf(sample, token, { columns, changed }) {
  const isTool = !sample.mask[token];
  const { value, error, loading } = terms;
  const current = isCurrent.value;
  const old = value !== null && !current ? " old" : "";
  return html`
    ${changed && !isTool ? html`<${WhatIfTerms} sample=${sample} token=${token} columns=${columns} />` : null}
    ${isFlipped(columns, token) ? html`<div class="note">${t("token.flipped")}</div>` : null}
    ${isTool ? html`<div class="note">${t("token.tool")}</div>` : null}
    ${error && !current ? html`<${Trouble} error=${error} retry=${terms.reload} />` : null}
    ${loading && value === null ? html`<p class="quiet late">${t("page.loading")}</p>` : null}
    ${
      value && !(error && !current) && !isTool
        ? html`<div class=${`terms${old}`}>
            ${changed ? html`<h3>${t("token.recorded.terms")}</h3>` : null}
            ${value.traces.map(
              (each) =>
                html`<${Term} key=${each.name} trace=${each} words=${value.words} settings=${sample.settings} />`,
            )}
          </div>`
        : null
    }
  `;
}

function verdictOf({ ok }) {
  if (ok === null || ok === undefined) return null;
  const word = t(ok ? "token.agrees" : "token.differs");
  return html`<span class=${ok ? "ok" : "off"} title=${word} aria-label=${word}>
    ${ok ? " ✓" : " ✗"}
  </span>`;
}

// What a term is called; the page has no words for one's own. Where nothing is whitened, Â is A.
function titleOf(name, settings) {
  if (name === "whitened" && settings.whiten === false) return t("token.name.unwhitened");
  const title = t(`token.name.${name}`);
  return title.startsWith("token.name.") ? name : title;
}

function Term({ trace, words, settings }) {
  const said = words[trace.words][lang.value];
  const meaning = said[isKid.value ? "kid" : "expert"];
  const title = isKid.value ? said.formula_in_words : titleOf(trace.name, settings);
  return html`
    <div class="trace" data-trace=${trace.name}>
      <div class="label">
        <b>${title}</b>
        ${trace.tex && !isKid.value ? html`<${CopyTex} tex=${trace.tex} />` : null}
        ${meaning ? html`<div>${meaning}</div>` : null}
      </div>
      <${Equation} trace=${trace} verdict=${verdictOf(trace)} />
    </div>
  `;
}

function CopyTex({ tex }) {
  const [done, setDone] = useState(false);
  async function copy() {
    await navigator.clipboard.writeText(tex);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  }
  return html`
    <button type="button" class="small copy-tex" title=${tex} onClick=${copy}>
      ${done ? t("token.copied") : t("token.copy")}
    </button>
  `;
}
