// Colours: purple – neutral – orange. The scale of a quantity is fixed for the whole run.

import { computed, effect, signal } from "../vendor/preact.js";
import { run } from "./data.js";
import { clamp, has } from "./number.js";
import { state } from "./state.js";

// A ramp ends where its theme's one ink still has a contrast of 5 (WCAG 2): text stays readable.
const RAMPS = {
  light: [
    [165, 135, 235],
    [208, 194, 246],
    [250, 250, 250],
    [253, 200, 140],
    [245, 135, 40],
  ],
  dark: [
    [110, 80, 185],
    [74, 62, 118],
    [43, 48, 58],
    [98, 66, 38],
    [155, 84, 20],
  ],
};
const INKS = { light: "#1f2430", dark: "#f2f4f8" };

// ---- light or dark: the visitor's choice, else the system's ----

const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => {
  systemIsDark.value = system.matches;
});
// Paper is light.
export const isPrinting = signal(false);
for (const [event, value] of [
  ["beforeprint", true],
  ["afterprint", false],
]) {
  window.addEventListener(event, () => {
    isPrinting.value = value;
  });
}
export const isDark = computed(() => {
  if (isPrinting.value) return false;
  return state.theme.value === "auto" ? systemIsDark.value : state.theme.value === "dark";
});
effect(() => {
  document.documentElement.dataset.theme = isDark.value ? "dark" : "light";
});

// ---- a number's colour ----

// The |x| at which a quantity's colour is full, the same at every step of the run.
export const scaleOf = (quantity) => run.value?.scales?.[quantity] || 1;

// x in units of its quantity's scale. A ratio is compared with 1.
const scaled = (quantity, x) => (quantity === "ratio" ? x - 1 : x) / scaleOf(quantity);

// x as −1..1 on its quantity's scale.
export const level = (quantity, x) => (has(x) ? clamp(scaled(quantity, x), -1, 1) : null);

// Whether x has the full colour only because the scale ends before it.
export const isOffScale = (quantity, x) => has(x) && Math.abs(scaled(quantity, x)) > 1.005;

// [red, green, blue] of x in −1..1
function mixed(x, ramp) {
  const at = (clamp(x, -1, 1) + 1) * 2;
  const i = Math.min(3, Math.floor(at));
  return ramp[i].map((c, k) => Math.round(c + (ramp[i + 1][k] - c) * (at - i)));
}

// ---- every shade of a theme, made once ----

const SHADES = 100; // to either side of neutral

function shadesOf(theme) {
  return Array.from({ length: 2 * SHADES + 1 }, (_, k) => {
    const paper = mixed(k / SHADES - 1, RAMPS[theme]);
    return { paper: `rgb(${paper.join(" ")})`, ink: INKS[theme] };
  });
}
const TABLES = { light: shadesOf("light"), dark: shadesOf("dark") };
const UNKNOWN = { paper: "var(--none)", ink: "var(--ink)" };

// {paper, ink} of x in −1..1: a background and the text on it.
export function shadeOf(x) {
  if (!has(x)) return UNKNOWN;
  return TABLES[isDark.value ? "dark" : "light"][Math.round((clamp(x, -1, 1) + 1) * SHADES)];
}
export const colour = (x) => shadeOf(x).paper;
export const ink = (x) => shadeOf(x).ink;
export const tone = (x) => (x < 0 ? "var(--minus)" : "var(--plus)");
