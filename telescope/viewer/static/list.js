// The list of samples: a chip for every token, coloured by the chosen quantity.

import { $, colour, el, groups, hex, ink, num, shown, visible } from "./tools.js";
import { CHIPS, PAGE, QUANTITIES, state, store, texts } from "./state.js";
import { source } from "./source.js";
import { viewOf } from "./whatif.js";
import { badges, chosenRows, level, scale, shownToken } from "./choice.js";

function chip(sample, t, top, label) {
  const isTool = !sample.mask[t];
  const x = viewOf(sample).columns[state.color]?.[t];
  const node = el(
    "button",
    {
      type: "button",
      class: isTool ? "chip tool" : "chip",
      tabindex: "-1",
      "data-sample": sample.position,
      "data-token": t,
    },
    label,
  );
  const mark = badges(sample, t);
  if (mark) node.append(el("sup", {}, mark));
  node.title = `${t}  ${QUANTITIES[state.color]} ${isTool ? "–" : shown(state.color, x)}`;
  if (!isTool) {
    node.style.backgroundColor = colour(level(x, top));
    node.style.color = ink(level(x, top));
  }
  return node;
}

// A character that is split over several tokens is one box with a chip for each.
function splitCharacter(sample, { from, to, text }, top) {
  const cells = el("span", {});
  for (let t = from; t < to; t++) cells.append(chip(sample, t, top, hex(sample.token_bytes[t])));
  return el("span", { class: "split" }, el("span", {}, visible(text, 24)), cells);
}

function isOpen(position) {
  const pinnedFarAway = position === state.sample && state.token >= CHIPS;
  return store.expanded.has(position) || pinnedFarAway;
}

function chipsOf(sample, top) {
  const open = isOpen(sample.position);
  const chips = el("span", { class: "chips" });
  for (const group of groups(sample)) {
    if (group.from >= CHIPS && !open) break;
    const one = group.to === group.from + 1;
    const label = visible(group.text, 24) || "∅";
    chips.append(one ? chip(sample, group.from, top, label) : splitCharacter(sample, group, top));
  }
  const sent = sample.token_bytes.length;
  const drawn = open ? sent : Math.min(CHIPS, sent);
  if (sent > drawn) {
    const more = { type: "button", class: "chip", "data-expand": sample.position };
    chips.append(el("button", more, `+${sample.length - drawn}`));
  } else if (sample.length > drawn) {
    chips.append(el("span", { class: "quiet" }, texts().cut(drawn, sample.length)));
  }
  return chips;
}

function sampleRow(row, top) {
  const verdict = row.right ? "✓" : "✗";
  const score = num(row.score, { digits: 2 });
  return el(
    "div",
    { class: `row ${row.right ? "right" : "wrong"}`, "data-row": row.position },
    el("span", { class: "head" }, `#${row.position} ${verdict} ${score}`),
    chipsOf(store.loaded.get(row.position), top),
  );
}

export function drawList() {
  const T = texts();
  const list = $("list");
  const scrolled = list.scrollTop;
  const rows = chosenRows();
  const here = rows.slice(0, store.wanted).filter((row) => store.loaded.has(row.position));
  const top = scale();
  list.replaceChildren();
  let last = null;
  let box = null;
  for (const row of here) {
    if (row.prompt_key !== last) {
      const several = here.filter((other) => other.prompt_key === row.prompt_key).length > 1;
      const prompt = store.loaded.get(row.position).prompt;
      box = el("div", { class: "rows" });
      list.append(
        el(
          "div",
          { class: several ? "group many" : "group" },
          el("div", { class: "prompt" }, visible(prompt, 200)),
          box,
        ),
      );
      last = row.prompt_key;
    }
    box.append(sampleRow(row, top));
  }
  if (rows.length > here.length) {
    const next = Math.min(PAGE, rows.length - here.length);
    list.append(el("button", { type: "button", id: "more" }, T.more(next)));
  }
  const recorded = store.run.steps.length > 0;
  if (!rows.length) list.append(el("p", { class: "quiet" }, recorded ? T.empty : T.nothing));
  list.scrollTop = scrolled;
  $("samples-count").textContent = recorded
    ? T.loaded(here.length, source.count(state.step))
    : "";
  markChosen();
}

export function markChosen() {
  for (const node of document.querySelectorAll(".chip.pinned, .chip.hover, .row.chosen")) {
    node.classList.remove("pinned", "hover", "chosen");
    if (node.matches(".chip")) node.tabIndex = -1;
  }
  const { sample } = shownToken();
  document.querySelector(`[data-row="${sample?.position}"]`)?.classList.add("chosen");
  const chipAt = (position, t) =>
    document.querySelector(`.chip[data-sample="${position}"][data-token="${t}"]`);
  if (store.hover) chipAt(store.hover.sample, store.hover.token)?.classList.add("hover");
  const pinned = chipAt(state.sample, state.token);
  const focusable = pinned ?? document.querySelector(".chip");
  if (focusable) focusable.tabIndex = 0;
  if (state.token !== null) pinned?.classList.add("pinned");
}
