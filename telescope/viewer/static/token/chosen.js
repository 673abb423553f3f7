// The token under the pointer, else the chosen one; and how the keys move along the tokens.

import { chooseToken, sample, tokenShown } from "../core/data.js";
import { go } from "../core/state.js";
import { computed, effect, signal } from "../vendor/preact.js";

// Of the sample that is shown: previewed, not chosen.
export const hovered = signal(null);

// The tokens that the fence picture shows: {from, to}.
export const lens = signal({ from: 0, to: 0 });

export const tokenSeen = computed(() => {
  const length = sample.value?.token_ids.length ?? 0;
  const over = hovered.value;
  return over !== null && over < length ? over : tokenShown.value;
});

// Another sample: the pointer's token is gone.
effect(() => {
  sample.signal.value;
  hovered.value = null;
});

// ---- the pointer ----

const tokenUnder = (node) => {
  const found = node.closest?.("[data-token]");
  return found ? Number(found.dataset.token) : null;
};

let pointer = {};

// Previews a token when the pointer moves, not when the page moves under the pointer.
function onPointerMove(event) {
  const still = event.clientX === pointer.x && event.clientY === pointer.y;
  pointer = { x: event.clientX, y: event.clientY };
  const token = tokenUnder(event.target);
  if (token !== null && !still && event.pointerType !== "touch") hovered.value = token;
}

function onClick(event) {
  const token = tokenUnder(event.target);
  if (token !== null) pin(token);
}

export function pin(token, options) {
  hovered.value = null;
  chooseToken(token, options);
}

// ---- the keys, for the panel that has the focus ----

const MOVES = { ArrowLeft: -1, ArrowRight: 1 };

function onKeyDown(event) {
  if (event.altKey || event.ctrlKey || event.metaKey) return;
  if (event.target.closest("input, select, textarea, button, summary")) return;
  const length = sample.peek()?.token_ids.length ?? 0;
  const { key } = event;
  const seen = tokenSeen.peek();
  if (MOVES[key] && seen !== null) {
    pin(Math.max(0, Math.min(length - 1, seen + MOVES[key])), { replace: true });
  } else if (key === "Home" || key === "End") pin(key === "Home" ? 0 : length - 1);
  else if (key === "Enter" && seen !== null) pin(seen);
  else if (key === "Escape") {
    hovered.value = null;
    go({ token: null });
  } else return;
  event.preventDefault();
}

// What a panel of tokens needs to be walked with the pointer and with the keys.
export const tokenPanel = {
  tabIndex: 0,
  onKeyDown,
  onClick,
  onPointerMove,
  onPointerLeave: () => {
    hovered.value = null;
  },
};
