// Two runs, or the recorded and another setting, side by side on the same prompt.

import { pathOf, run, runId, runs, sample as shownSample, stepShown } from "../core/data.js";
import { has, nearest } from "../core/number.js";
import { Choice, Panel, Trouble } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { t } from "../core/text.js";
import { groups } from "../core/token_text.js";
import { ColourChoice, Legend } from "../samples/legend.js";
import { figureOf } from "../token/figure.js";
import { html } from "../vendor/preact.js";
import { Controls } from "../whatif/controls.js";
import { viewOf } from "../whatif/whatif.js";
import { AnswerHead, Coloured } from "./coloured.js";
import { promptPath, samplePath, useAnswer } from "./loaded.js";
import { PromptChoice, promptShown } from "./prompt_choice.js";

const SETTING = "?"; // not a name that a folder has in the list: this run with another setting

// The first token at which two answers differ; null: one is the beginning of the other.
function firstDifference(one, other) {
  const [a, b] = [groups(one), groups(other)];
  const k = a.findIndex((group, i) => group.text !== b[i]?.text);
  if (k < 0) return a.length < b.length ? [null, b[a.length].from] : [null, null];
  return [a[k].from, b[k]?.from ?? null];
}

// The first token whose number differs.
function firstOtherNumber(sample, columns) {
  const before = sample.columns[state.colour.value] ?? [];
  const after = columns[state.colour.value] ?? [];
  const i = sample.mask.findIndex((m, k) => m && Math.abs(before[k] - after[k]) > 1e-6);
  return i < 0 ? null : i;
}

const otherRuns = () => (runs.value?.runs ?? []).filter(({ id }) => id !== runId.value);

function OtherChoice({ value }) {
  const options = [
    [SETTING, t("compare.setting")],
    ...otherRuns().map(({ id, name }) => [id, name]),
  ];
  const choose = (other) => go({ other });
  return html`<${Choice} id="other" label=${t("compare.other")} ...${{ value, options, choose }} />`;
}

export function SideBySide({ found }) {
  const other = state.other.value ?? otherRuns()[0]?.id ?? SETTING;
  const key = promptShown(found.index);
  const Pair = other === SETTING ? TwoSettings : TwoRuns;
  return html`
    <${Panel} id="side-by-side" title=${t("compare.runs.title")}>
      <${Pair} key=${other} found=${found} promptKey=${key} other=${other} />
    </${Panel}>
  `;
}

function Bars({ found, other, shared, sample }) {
  return html`
    <div class="bar">
      <${PromptChoice} index=${found.index} shared=${shared} />
      <${OtherChoice} value=${other} />
    </div>
    ${sample ? html`<div class="bar under"><${ColourChoice} sample=${sample} /><${Legend} sample=${sample} /></div>` : null}
  `;
}

// ---- two runs ----

// The answer to a prompt that is nearest to a step.
function useAnswerTo(key, runName, step) {
  const found = useAnswer(key === null ? null : promptPath(key, runName));
  const rows = found.value?.rows ?? [];
  const at = nearest(
    rows.map((row) => row.step),
    step,
  );
  const row = rows.find((each) => each.step === at) ?? null;
  const sample = useAnswer(row && samplePath({ run: runName, ...row }));
  return {
    row,
    sample: sample.value,
    error: found.error ?? sample.error,
    isThere: found.value !== null,
  };
}

function TwoRuns({ found, promptKey, other }) {
  const step = stepShown.value;
  const header = useAnswer(pathOf(other)).value;
  const otherStep = header ? nearest(header.ledger, step) : null;
  const index =
    useAnswer(otherStep === null ? null : pathOf(other, `/steps/${otherStep}`)).value?.index ?? [];
  const shared = new Set(index.map((row) => row.prompt_key));
  const left = useAnswerTo(promptKey, runId.value, step);
  const right = useAnswerTo(promptKey, other, step);
  const isBoth = left.sample && right.sample;
  const marks = isBoth ? firstDifference(left.sample, right.sample) : [null, null];
  return html`
    <${Bars} found=${found} other=${other} shared=${shared} sample=${left.sample} />
    <p class="quiet">${t("compare.shared", { n: found.index.filter((row) => shared.has(row.prompt_key)).length, every: found.index.length, step: otherStep ?? "–" })}</p>
    <div class="pair">
      <${Side} name=${run.value?.name} side=${left} mark=${marks[0]} />
      <${Side} name=${header?.name ?? other} runName=${other} side=${right} mark=${marks[1]} />
    </div>
    <p id="difference">${isBoth ? differenceSaid(marks, left, right) : ""}</p>
  `;
}

function differenceSaid([a, b], left, right) {
  const same = a === null && b === null;
  const said = same ? t("compare.same") : t("compare.differs", { i: a ?? b });
  const gap = right.row.score - left.row.score;
  const sentences = [
    said,
    has(gap) ? t("compare.gap", { gap: figureOf("score", gap, { sign: true, digits: 2 }) }) : null,
    left.row.step !== right.row.step
      ? t("compare.steps_differ", { a: left.row.step, b: right.row.step })
      : null,
  ];
  return sentences.filter(Boolean).join(" ");
}

function Side({ name, runName = null, side, mark }) {
  const { row, sample, error, isThere } = side;
  return html`
    <section class="side" data-run=${runName ?? "own"}>
      <h3>${name}</h3>
      ${error ? html`<${Trouble} error=${error} />` : null}
      ${isThere && row === null ? html`<p class="quiet">${t("compare.never")}</p>` : null}
      ${row ? html`<${Head} row=${row} />` : null}
      ${sample ? html`<${Coloured} sample=${sample} run=${runName} mark=${mark} />` : null}
    </section>
  `;
}

function Head({ row }) {
  return html`<${AnswerHead} row=${row}><span>${t("compare.at", row)}</span></${AnswerHead}>`;
}

// ---- two settings ----

function TwoSettings({ found, promptKey }) {
  const row = found.index.find((each) => each.prompt_key === promptKey) ?? null;
  const position = row?.position ?? null;
  const path = position === null ? null : samplePath({ step: stepShown.value, position });
  const { value, error } = useAnswer(path);
  const view = value ? viewOf(value) : null;
  const mark = view?.changed ? firstOtherNumber(value, view.columns) : null;
  return html`
    <${Controls} sample=${value ?? shownSample.value} />
    <${Bars} found=${found} other=${SETTING} sample=${value} />
    ${error ? html`<${Trouble} error=${error} />` : null}
    ${
      value && row
        ? html`
          <div class="pair">
            ${[
              ["recorded", t("token.recorded"), value.columns],
              ["now", t("token.now"), view.columns],
            ].map(
              ([name, title, columns]) => html`
                <section key=${name} class="side" data-run=${name}>
                  <h3>${title}</h3>
                  <${Head} row=${{ ...row, step: stepShown.value }} />
                  <${Coloured}
                    sample=${value} columns=${columns}
                    mark=${mark}
                  />
                </section>
              `,
            )}
          </div>
          <p id="difference">
            ${mark === null ? t("compare.setting.same") : t("compare.setting.differs", { i: mark })}
          </p>
        `
        : null
    }
  `;
}
