// The looks of lines: a colour and a dash each, so that they differ without colour too.

import { isDark } from "../core/colour.js";

export const LINES = 8;
const DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [4, 2], [12, 4], [1, 4], [6, 2, 2, 2, 2, 2]];

// Beyond the last colour, the same colour has another dash.
export const dashOf = (index) => DASHES[(index + 3 * Math.floor(index / LINES)) % DASHES.length];

const read = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";

// The page's colours as a canvas needs them, again after a change of light and dark.
export function canvasColours() {
  isDark.value; // they change with it
  return {
    ink: read("--quiet"),
    grid: read("--grid"),
    axis: read("--line-strong"),
    panel: read("--panel"),
    here: read("--pick"),
    alarm: read("--bad"),
    line: (index) => read(`--line-${index % LINES}`),
  };
}

// Half-transparent: #rrggbb and an opacity
export const faint = (hex, opacity) =>
  `${hex}${Math.round(opacity * 255)
    .toString(16)
    .padStart(2, "0")}`;
