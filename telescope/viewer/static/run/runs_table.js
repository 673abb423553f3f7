// The table of runs. A name opens its run; a check mark draws it in the charts.

import { chartRuns, runs } from "../core/data.js";
import { has } from "../core/number.js";
import { addressOf, go, state, without } from "../core/state.js";
import { isKid, lang, t } from "../core/text.js";
import { computed, html } from "../vendor/preact.js";
import { Swatch } from "./chart_card.js";
import { groups, isMarked } from "./chart_state.js";
import { settingText, shownValue, time } from "./format.js";
import { Status } from "./summary.js";

// What a column is sorted by; undefined goes last.
const KEYS = {
  name: (each) => each.name,
  status: (each) => each.status,
  step: (each) => each.step,
  accuracy: (each) => each.accuracy?.now[1],
  seed: (each) => each.seed,
  updated: (each) => each.updated,
};
const LARGEST_FIRST = ["step", "accuracy", "updated"];

function compared(a, b) {
  const [isA, isB] = [a, b].map((x) => x !== undefined && x !== null);
  if (!isA || !isB) return isA - isB;
  return typeof a === "number"
    ? a - b
    : String(a).localeCompare(String(b), "en", { numeric: true });
}

function sorted(rows) {
  const isDown = state.by.value.startsWith("-");
  const name = state.by.value.replace("-", "");
  const key = KEYS[name] ?? KEYS.name;
  const known = rows.filter((each) => has(key(each)) || typeof key(each) === "string");
  const unknown = rows.filter((each) => !known.includes(each));
  known.sort((a, b) => compared(key(a), key(b)) * (isDown ? -1 : 1));
  return [...known, ...unknown];
}

export function RunsTable({ rows, now }) {
  if (!rows.length) return html`<p class="quiet">${t("runs.none")}</p>`;
  return html`
    <div class="scroll">
      <table class="runs">
        <thead>
          <tr>
            <th scope="col" class="narrow"><${ChooseAll} /></th>
            ${Object.keys(KEYS).map((name) => html`<${Heading} key=${name} name=${name} />`)}
            <th scope="col">${t("runs.differs")}</th>
          </tr>
        </thead>
        <tbody>
          ${sorted(rows).map((each) => html`<${Row} key=${each.id} each=${each} now=${now} />`)}
        </tbody>
      </table>
    </div>
  `;
}

function Heading({ name }) {
  const isSorted = state.by.value.replace("-", "") === name;
  const isDown = state.by.value.startsWith("-");
  const first = LARGEST_FIRST.includes(name) ? `-${name}` : name;
  const turned = isDown ? name : `-${name}`;
  const order = isDown ? "descending" : "ascending";
  return html`<th scope="col" aria-sort=${isSorted ? order : "none"}>
    <button type="button" data-sort=${name} onClick=${() => go({ by: isSorted ? turned : first })}>
      ${t(`runs.${name}`)}<i aria-hidden="true">${isSorted ? (isDown ? "▼" : "▲") : ""}</i>
    </button>
  </th>`;
}

// ---- which runs are drawn ----

const choose = (ids) => {
  const all = runs.value.runs.map(({ id }) => id);
  const isAll = ids.length === all.length;
  go({ with: isAll ? null : ids.length ? ids : ["-"] }); // "-": none
};

function ChooseAll() {
  const all = runs.value.runs.map(({ id }) => id);
  const isAll = chartRuns.value.length === all.length;
  return html`<input
    id="choose-all"
    type="checkbox"
    aria-label=${t("runs.choose_all")}
    title=${t("runs.choose_all")}
    checked=${isAll}
    onChange=${() => choose(isAll ? [] : all)}
  />`;
}

function Row({ each, now }) {
  const isChosen = chartRuns.value.includes(each.id);
  const toggle = () =>
    choose(isChosen ? without(chartRuns.value, each.id) : [...chartRuns.value, each.id]);
  const group = groups.value?.find(({ ids }) => ids.includes(each.id));
  const open = { run: each.id, view: "run", step: null, sample: null, token: null, with: null };
  const openHere = (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey) return; // a new tab
    event.preventDefault();
    go(open);
  };
  return html`<tr data-run=${each.id}>
    <td class="narrow">
      <input
        type="checkbox"
        aria-label=${t("runs.choose_one", { name: each.name })}
        checked=${isChosen}
        onChange=${toggle}
      />
    </td>
    <th scope="row">
      <a href=${addressOf(open)} onClick=${openHere}>${each.name}</a>
      ${isChosen && group ? html`<${Swatch} look=${group.look} />` : null}
    </th>
    <td><${Status} status=${each.status} silentFor=${each.silent_for} /><${Warned} each=${each} /></td>
    <td class="number"><${Steps} each=${each} /></td>
    <td class="number"><${Accuracy} accuracy=${each.accuracy} /></td>
    <td class="number">${each.seed ?? "–"}</td>
    <td class="number">${has(each.updated) ? t("runs.ago", { ago: time(now - each.updated) }) : "–"}</td>
    <td class="differs"><${Settings} settings=${each.settings ?? {}} /></td>
  </tr>`;
}

function Warned({ each }) {
  const found = (each.alarms ?? []).filter(isMarked);
  if (!found.length) return null;
  const first = found[0][`what_${lang.value}`];
  return html` <span class="warned" title=${isKid.value ? null : first}>
    ▼ ${t("runs.alarms", { n: found.length })}
  </span>`;
}

function Steps({ each }) {
  const { step, total_steps: total } = each;
  return html`${step ?? "–"}${has(total) ? html`<small> / ${total}</small>` : null}
    ${has(total) && total > 0 ? html`<progress max=${total} value=${step ?? 0}></progress>` : null}`;
}

function Accuracy({ accuracy }) {
  if (!accuracy) return "–";
  const [before, now] = [accuracy.before, accuracy.now].map(([, x]) => shownValue(x, "share"));
  if (accuracy.before[0] === accuracy.now[0]) return now;
  return html`<span title=${accuracy.metric}><small>${before} →</small> <b>${now}</b></span>`;
}

// On one line, the most telling first; the table of differences has them whole.
function Settings({ settings }) {
  const shown = tellingKeys.value
    .filter((key) => key in settings)
    .map((key) => [key, `${shortKey(key)}=${shortValue(settings[key])}`]);
  return html`<div class="one-line" title=${shown.map(([, text]) => text).join("  ")}>
    ${shown.map(([key, text]) => html`<code key=${key}>${text}</code>`)}
  </div>`;
}

const OWN_COLUMNS = ["seed", "steps"];

// The settings that differ, those with the most different values first.
const tellingKeys = computed(() => {
  const all = (runs.value?.runs ?? []).map(({ settings }) => settings ?? {});
  const keys = [...new Set(all.flatMap((each) => Object.keys(each)))];
  const kinds = (key) => new Set(all.map((each) => each[key])).size;
  return keys.filter((key) => !OWN_COLUMNS.includes(key)).sort((a, b) => kinds(b) - kinds(a));
});

// rollout.n -> n, if no other setting ends like it
function shortKey(key) {
  const end = key.split(".").at(-1);
  const isAlone = tellingKeys.value.filter((each) => each.split(".").at(-1) === end).length === 1;
  return isAlone ? end : key;
}

// Lists and paths without what only clutters: ["./data/a.parquet"] -> a.parquet
const shortValue = (value) =>
  settingText(value)
    .replace(/["[\]{}]/g, "")
    .replace(/[^\s,]*\//g, "") || "none";
