// The answers of an evaluation: prompt, answer, right or wrong.

import { useAnswer } from "../compare/loaded.js";
import { pathIn, run } from "../core/data.js";
import { num } from "../core/number.js";
import { Choice, Loaded, Panel, Segment, Table } from "../core/parts.js";
import { get } from "../core/source.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { bothEnds, oneLine, runs } from "../core/token_text.js";
import { html } from "../vendor/preact.js";

const VERDICTS = ["all", "right", "wrong"];
const WORDS = 300; // characters of an answer in the list
const QUESTION = 240;
const ON_PAPER = 12; // rows

export function Evaluated() {
  const steps = run.value?.evaluations ?? [];
  const asked = state.evaluated.value;
  const step = steps.includes(asked) ? asked : (steps.at(-1) ?? null);
  const query = new URLSearchParams({
    set: state.set.value,
    kind: state.drawn.value,
    is: state.is.value,
  });
  const path = step === null ? null : pathIn(`/evaluations/${step}/answers?${query}`);
  const { value, error } = useAnswer(path, get);
  if (step === null) return null;
  const from = { value, error, loading: true };
  return html`
    <${Panel} id="evaluated" title=${t("evaluated.title", { n: step })}>
      <div class="tools">
        <${Several} id="evaluated-step" label=${t("evaluated.step")} value=${step} options=${steps}
          choose=${(given) => go({ evaluated: Number(given) })} />
        ${value ? html`<${Filters} found=${value} />` : null}
      </div>
      <${Loaded} from=${from}>${(found) => html`<${Answers} found=${found} />`}</${Loaded}>
    </${Panel}>
  `;
}

// With one option there is nothing to choose.
function Several({ options, say = (option) => option, ...others }) {
  if (options.length < 2) return null;
  return html`<${Choice} options=${options.map((each) => [each, say(each)])} ...${others} />`;
}

function Filters({ found }) {
  const { sets, kinds, set, kind } = found;
  return html`
    <${Several} id="evaluated-set" label=${t("evaluated.set")} value=${set} options=${sets}
      choose=${(given) => go({ set: given })} say=${(each) => each || t("evaluated.own")} />
    <${Several} id="evaluated-kind" label=${t("evaluated.kind")} value=${kind} options=${kinds}
      choose=${(drawn) => go({ drawn })} />
    <${Segment} id="evaluated-is" label=${t("evaluated.filter")}
      options=${VERDICTS.map((each) => [each, t(`evaluated.${each}`)])}
      value=${state.is.value} choose=${(is) => go({ is })} />
  `;
}

function Answers({ found }) {
  const { rows, count, right, total } = found;
  const head = ["prompt", "answer", "score"].map((name) => [name, t(`evaluated.${name}`)]);
  return html`
    <p class="quiet">${t("evaluated.count", { right, total })}
      ${count > rows.length ? ` ${t("evaluated.first", { n: rows.length })}` : ""}
      ${rows.length > ON_PAPER ? html` <span class="on-paper">${t("evaluated.paper", { n: ON_PAPER })}</span>` : null}</p>
    <${Table} kind="evaluated" head=${head}>
      ${rows.map(
        (row, i) => html`<tr key=${i} data-right=${row.right ? "1" : "0"}>
          <td title=${row.user}>${oneLine(row.user, QUESTION)}</td>
          <td><${Answer} text=${row.response} /></td>
          <td>${row.right ? "✓" : "✗"} ${num(row.score)}</td>
        </tr>`,
      )}
    </${Table}>
  `;
}

// Its beginning and its end; a click shows all of it.
function Answer({ text }) {
  const short = bothEnds(text, WORDS);
  if (short.length >= text.trim().length) return html`<span>${short}</span>`;
  return html`<details><summary>${short}</summary><p class="whole">${runs(text).map((each) => each.text)}</p></details>`;
}
