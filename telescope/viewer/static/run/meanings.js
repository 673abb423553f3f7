// What a metric means, in one line, by its name as in metrics.jsonl.

import { lang } from "../core/text.js";
import { metricsEn } from "../texts/metrics_en.js";
import { metricsZh } from "../texts/metrics_zh.js";

const WORDS = { en: metricsEn, zh: metricsZh };

// Names with a part that a run chooses, and the name in the docs.
const FAMILIES = [
  [/^reward\/[^/]+\/./, "reward/<part>/<metric>"],
  [/^reward\//, "reward/<part>"],
  [/^eval\/greedy_part\//, "eval/greedy_part/<part>"],
  [/^eval\/greedy_accuracy\//, "eval/greedy_accuracy/<value>"],
  [/^eval\//, "eval/<set>/<metric>"],
];

export function meaningOf(name) {
  const words = WORDS[lang.value];
  if (words[name]) return words[name];
  const general = name.replace(/@\d+$/, "@k");
  if (words[general]) return words[general];
  const family = FAMILIES.find(([pattern]) => pattern.test(name));
  return family ? words[family[1]] : "";
}
