// Which samples the table lists, and in which order.

import { onlyPrompt, pathIn, resource, sampleShown, step, stepShown } from "../core/data.js";
import { has } from "../core/number.js";
import { rested } from "../core/rest.js";
import { get, isLive } from "../core/source.js";
import { go, listed, state, without } from "../core/state.js";
import { groups } from "../core/token_text.js";
import { computed } from "../vendor/preact.js";

// name -> whether a row stays
export const FILTERS = {
  right: (row) => row.right,
  wrong: (row) => !row.right,
  truncated: (row) => row.truncated,
  tool: (row) => row.tools > 0,
  clipped: (row) => row.clip_fraction > 0,
  flipped: (row) => row.flipped > 0,
};
const OPPOSITES = { right: "wrong", wrong: "right" };

// ---- search: the server reads whole prompts and answers; a report reads what it holds ----

const REST = 200; // ms
const searched = rested(
  computed(() => state.search.value.trim()),
  REST,
  (text) => text === "",
);

const textOf = (sample) =>
  [...sample.prompt_parts, ...groups(sample)].map((part) => part.text).join("");

async function searchInFile(path) {
  const text = new URL(path, "http://x/").searchParams.get("text").toLowerCase();
  const folder = path.slice(0, path.indexOf("/search?"));
  const positions = step.peek()?.index.map((row) => row.position) ?? [];
  const found = await Promise.allSettled(
    positions.map((position) => get(`${folder}/samples/${position}`)),
  );
  const holds = ({ value }) => value && textOf(value).toLowerCase().includes(text);
  return { positions: positions.filter((_, k) => holds(found[k])) };
}

export const search = resource(
  () => {
    if (!searched.value || stepShown.value === null) return null;
    const asked = new URLSearchParams({ text: searched.value });
    return pathIn(`/steps/${stepShown.value}/search?${asked}`);
  },
  { ask: isLive ? get : searchInFile, ownerOf: () => `${stepShown.value}/${searched.value}` },
);

// ---- rows ----

// A row's marks in the order of their column: cut off first, then tools, then sign flips.
const marksOf = (row) => 1e6 * Number(row.truncated) + 1e3 * row.tools + row.flipped;

function cellValue(row, column) {
  if (column.startsWith("part:")) return row.parts?.[column.slice(5)];
  return column === "marks" ? marksOf(row) : row[column];
}

// Numbers by size, texts by letters; what is missing comes last.
function compare(a, b) {
  const absent = (x) => x === null || x === undefined;
  if (absent(a) || absent(b)) return Number(absent(a)) - Number(absent(b));
  return typeof a === "string" ? a.localeCompare(b) : a - b;
}

export const rowsShown = computed(() => {
  const names = (state.filter.value ?? []).filter((name) => Object.hasOwn(FILTERS, name));
  const { low, high, group, sort, down } = state;
  const found = searched.value ? search.signal.value.value?.positions : null;
  const positions = found ? new Set(found) : null;
  const rows = (step.value?.index ?? []).filter(
    (row) =>
      names.every((name) => FILTERS[name](row)) &&
      (onlyPrompt.value === null || row.prompt_key === onlyPrompt.value) &&
      (low.value === null || (has(row.score) && row.score >= low.value)) &&
      (high.value === null || (has(row.score) && row.score <= high.value)) &&
      (group.value === null || row.group === group.value) &&
      (positions === null || positions.has(row.position)),
  );
  const column = sort.value;
  const sign = down.value ? -1 : 1;
  const by = (row) => cellValue(row, column);
  return rows.sort((a, b) => sign * compare(by(a), by(b)) || a.position - b.position);
});

// ---- changing them ----

export function toggleFilter(name) {
  const now = state.filter.peek() ?? [];
  const others = without(without(now, name), OPPOSITES[name]);
  go({ filter: listed(now.includes(name) ? others : [...others, name]) });
}

// Only the prompt of this row, or all prompts again.
export function togglePrompt(row) {
  const now = state.filter.peek() ?? [];
  const isOn = now.includes("prompt");
  const filter = listed(isOn ? without(now, "prompt") : [...now, "prompt"]);
  const prompt = isOn ? null : (row?.prompt_key ?? null);
  go({ filter, prompt, sample: sampleShown.peek() });
}

// For a jump to any sample: the list is no longer that of one prompt.
export function ofAllPrompts() {
  if (onlyPrompt.value === null) return {};
  return { filter: listed(without(state.filter.value, "prompt")), prompt: null };
}

export const isFiltered = computed(
  () =>
    (state.filter.value?.length ?? 0) > 0 ||
    state.search.value !== "" ||
    [state.low, state.high, state.group].some((each) => each.value !== null),
);

// The answer that is read stays.
export const clearFilters = () =>
  go({
    filter: null,
    search: "",
    low: null,
    high: null,
    group: null,
    prompt: null,
    sample: onlyPrompt.peek() ? sampleShown.peek() : state.sample.peek(),
  });

// First press: the column's own direction; second: the other one.
export function sortBy(column, downFirst) {
  const isSame = state.sort.peek() === column;
  const down = isSame ? !state.down.peek() : downFirst;
  go({ sort: column, down: down ? true : null });
}
