// Colours: purple – neutral – orange. The scale of a quantity is fixed for the whole run.

import { computed, effect, signal } from "../vendor/preact.js";
import { run } from "./data.js";
import { clamp, has } from "./number.js";
import { state } from "./state.js";

const RAMPS = {
  light: [
    [84, 39, 136],
    [153, 142, 195],
    [250, 250, 250],
    [253, 184, 99],
    [214, 96, 4],
  ],
  dark: [
    [176, 150, 240],
    [98, 82, 150],
    [43, 48, 58],
    [150, 92, 32],
    [250, 160, 64],
  ],
};

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

// x as −1..1 on its quantity's scale. A ratio is compared with 1.
export function level(quantity, x) {
  if (!has(x)) return null;
  const from = quantity === "ratio" ? x - 1 : x;
  return clamp(from / scaleOf(quantity), -1, 1);
}

// [red, green, blue] of x in −1..1
function mixed(x, ramp) {
  const at = (clamp(x, -1, 1) + 1) * 2;
  const i = Math.min(3, Math.floor(at));
  return ramp[i].map((c, k) => Math.round(c + (ramp[i + 1][k] - c) * (at - i)));
}

// ---- text on it: contrast of 4.5 at least ----

const LEAST = 4.5;
const INKS = {
  light: [
    ["#1f2430", [31, 36, 48]],
    ["#fff", [255, 255, 255]],
  ],
  dark: [
    ["#f2f4f8", [242, 244, 248]],
    ["#14171c", [20, 23, 28]],
  ],
};

// WCAG 2
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => {
    const part = c / 255;
    return part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

function contrast(one, other) {
  const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}

function inkOn(paper, inks) {
  const found = inks.find(([, rgb]) => contrast(rgb, paper) >= LEAST);
  if (found) return found[0];
  return contrast([255, 255, 255], paper) >= LEAST ? "#fff" : "#000";
}

// ---- both, for every shade of a theme, made once ----

const SHADES = 100; // to either side of neutral

function shadesOf(theme) {
  return Array.from({ length: 2 * SHADES + 1 }, (_, k) => {
    const paper = mixed(k / SHADES - 1, RAMPS[theme]);
    return { paper: `rgb(${paper.join(" ")})`, ink: inkOn(paper, INKS[theme]) };
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
