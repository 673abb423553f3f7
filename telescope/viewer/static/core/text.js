// The page's own words in the chosen language and level. Sentences about a number come from Python.

import { en } from "../texts/en.js";
import { kidEn } from "../texts/kid_en.js";
import { kidZh } from "../texts/kid_zh.js";
import { zh } from "../texts/zh.js";
import { computed, effect } from "../vendor/preact.js";
import { state } from "./state.js";

const TEXTS = { zh, en };
const KID = { zh: kidZh, en: kidEn };

export const lang = computed(
  () => state.lang.value ?? (navigator.language.startsWith("zh") ? "zh" : "en"),
);
const words = computed(() => {
  const own = TEXTS[lang.value];
  return state.kid.value ? { ...own, ...KID[lang.value] } : own;
});

// t("run.step", {n: 3}) puts 3 in the place of {n}.
export function t(key, values = {}) {
  const said = words.value[key] ?? key;
  return said.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? values[name] : whole));
}

export const isKid = computed(() => state.kid.value === true);

effect(() => {
  document.documentElement.lang = lang.value === "zh" ? "zh-Hans" : "en";
});
