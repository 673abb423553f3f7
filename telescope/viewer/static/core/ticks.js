// Round numbers along an axis, and shapes that can be pressed.

import { minus } from "./number.js";

// About `count` round numbers from low to high.
export function ticksOf(low, high, count = 5) {
  const rough = (high - low) / count;
  if (!(rough > 0) || !Number.isFinite(rough)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough);
  const first = Math.ceil(low / step - 1e-9);
  const last = Math.floor(high / step + 1e-9);
  return Array.from({ length: last - first + 1 }, (_, k) => (first + k) * step);
}

// As many decimals as the distance of two ticks needs.
export function tickText(tick, ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1;
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return minus(tick.toFixed(digits));
}

// What makes a shape a button.
export function pressable(action, isPressed = false) {
  return {
    role: "button",
    tabindex: 0, // as an attribute: shapes have no such property
    "aria-pressed": isPressed ? "true" : "false",
    onClick: action,
    onKeyDown: (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      action();
    },
  };
}
