// Colours the answer's tokens. They are painted by hand, not drawn anew, and those out of sight only
// once the numbers rest: an answer of 2,000 tokens stays smooth while λ is dragged.

import { level, shadeOf } from "../core/colour.js";
import { tokenShown } from "../core/data.js";
import { hovered } from "../token/chosen.js";
import { isClipped, isFlipped, quantityShown } from "../token/view.js";
import { useEffect, useRef, useSignalEffect } from "../vendor/preact.js";
import { viewOf } from "../whatif/whatif.js";

const REST = 150; // ms
const SPARE = 200; // px above and below what is in sight

// ---- the spans, and where they stand ----

function measured(box) {
  const spans = [];
  for (const node of box.querySelectorAll("[data-token]")) {
    spans[Number(node.dataset.token)] = node;
  }
  const tops = spans.map((span) => span.offsetTop);
  return { spans, tops, height: box.clientHeight, scrolled: box.scrollTop };
}

// The first place of a sorted list whose number is at least x.
function placeOf(sorted, x) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

// ---- one token ----

const PLAIN = { paper: "", ink: "" };

function paintOne(span, shade, clipped, flipped) {
  if (span.shade !== shade) {
    span.shade = shade;
    span.style.backgroundColor = shade.paper;
    span.style.color = shade.ink;
  }
  if (span.clipped !== clipped) span.classList.toggle("clipped", clipped);
  if (span.flipped !== flipped) span.classList.toggle("flipped", flipped);
  span.clipped = clipped;
  span.flipped = flipped;
}

function paint({ spans }, sample, from, to) {
  const { columns } = viewOf(sample);
  const quantity = quantityShown(sample);
  const column = columns[quantity] ?? [];
  for (let i = from; i < to; i++) {
    const strength = sample.mask[i] ? level(quantity, column[i]) : null;
    const shade = strength === null ? PLAIN : shadeOf(strength);
    paintOne(spans[i], shade, isClipped(sample, columns, i), isFlipped(columns, i));
  }
}

// ---- all of them ----

// Moves a class from one span to another.
function moveMark(last, span, name) {
  last.current?.classList.remove(name);
  span?.classList.add(name);
  last.current = span ?? null;
}

export function Painter({ sample, box }) {
  const made = useRef({ spans: [], tops: [], height: 0, scrolled: 0 });
  const pinned = useRef(null);
  const over = useRef(null);
  const timer = useRef(0);
  const paintInSight = () => {
    const { tops, height, scrolled } = made.current;
    const from = placeOf(tops, scrolled - SPARE);
    const to = placeOf(tops, scrolled + height + SPARE);
    paint(made.current, sample, from, to);
  };
  const onScroll = () => {
    made.current.scrolled = box.current.scrollTop;
    paintInSight();
  };
  useEffect(() => {
    made.current = measured(box.current);
    paint(made.current, sample, 0, made.current.spans.length);
    const node = box.current;
    const watch = new ResizeObserver(() => {
      made.current = measured(node);
    });
    watch.observe(node);
    node.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      watch.disconnect();
      node.removeEventListener("scroll", onScroll);
      clearTimeout(timer.current);
    };
  }, [sample]);
  useSignalEffect(() => {
    paintInSight();
    clearTimeout(timer.current);
    timer.current = setTimeout(
      () => paint(made.current, sample, 0, made.current.spans.length),
      REST,
    );
  });
  useSignalEffect(() => {
    const span = made.current.spans[tokenShown.value];
    moveMark(pinned, span, "pinned");
    if (span) showInside(span, box.current);
  });
  useSignalEffect(() => {
    moveMark(over, hovered.value === null ? null : made.current.spans[hovered.value], "hover");
  });
  return null;
}

// Scrolls the answer, not the page, so that the token is inside.
function showInside(span, box) {
  const around = box.getBoundingClientRect();
  const place = span.getBoundingClientRect();
  if (place.top < around.top) box.scrollTop -= around.top - place.top + 30;
  if (place.bottom > around.bottom) box.scrollTop += place.bottom - around.bottom + 30;
}
