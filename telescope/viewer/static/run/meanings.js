// What a metric means, in one line, by its name as in metrics.jsonl.

import { lang } from "../core/text.js";
import { metricsEn } from "../texts/metrics_en.js";
import { metricsZh } from "../texts/metrics_zh.js";

const WORDS = { en: metricsEn, zh: metricsZh };

export function meaningOf(name) {
  const words = WORDS[lang.value];
  if (words[name]) return words[name];
  const general = name.replace(/@\d+$/, "@k");
  if (words[general]) return words[general];
  return name.startsWith("reward/") ? words["reward/<part>"] : "";
}
