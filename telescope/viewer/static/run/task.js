// What the run learns, in a sentence or two, from its config: model, data, reward.

import { run } from "../core/data.js";
import { isKid, t } from "../core/text.js";
import { html } from "../vendor/preact.js";

const isNone = (value) => value === null || value === undefined || value === "none";

// A list or table is one line of JSON; a long one was cut and cannot be read back.
function read(text, otherwise) {
  if (isNone(text)) return otherwise;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const baseName = (path) => path.split("/").at(-1);

// "file.py:function", "name=https://…" or "https://host/path"
function partOf(given) {
  const [named, address] = given.split("=https://");
  if (address !== undefined) return { name: named, source: `https://${address}` };
  if (given.startsWith("http")) return { name: baseName(given), source: given };
  const colon = given.lastIndexOf(":");
  return { name: given.slice(colon + 1), source: given.slice(0, Math.max(colon, 0)) };
}

const BUILT_IN = ["verdict", "sum"];

function dataOf(get) {
  const files = read(get("data.files"), []);
  if (files?.length) return files.join(", ");
  if (files === null) return get("data.files");
  return isNone(get("data.task")) ? t("run.task_builtin") : get("data.task");
}

// [{name, weight}], or null where the config does not say.
function partsOf(get) {
  const functions = read(get("reward.functions"), []);
  const weights = read(get("reward.weights"), {});
  if (functions === null || weights === null) return null;
  const isOwn = functions.length > 0 || !isNone(get("reward.model"));
  if (!isOwn && !isNone(get("data.task"))) return null; // scored by the task itself
  const found = functions.map(partOf);
  if (!isNone(get("reward.model"))) found.push({ name: "model", source: get("reward.model") });
  const parts = isOwn ? found : BUILT_IN.map((name) => ({ name, source: "" }));
  return parts.map((part) => ({ ...part, weight: weights[part.name] ?? (isOwn ? 1 : 0.5) }));
}

function scoreOf(parts) {
  const counted = parts.filter(({ weight }) => weight !== 0);
  const watched = parts.filter(({ weight }) => weight === 0);
  const sources = [...new Set(parts.map(({ source }) => source).filter(Boolean))];
  const score = counted.map(({ weight, name }) => `${weight} × ${name}`).join(" + ") || "0";
  const from = sources.length ? t("run.task_from", { files: sources.join(", ") }) : "";
  const names = watched.map(({ name }) => name).join(", ");
  return [t("run.task_score", { score, from }), names && t("run.task_watched", { names })];
}

// Settings that change the score afterwards.
function thenOf(get) {
  const on = [
    ["reward.scale", (get("reward.scale") ?? 1) !== 1],
    ["reward.shift", (get("reward.shift") ?? 0) !== 0],
    ["reward.normalise", [true, "batch"].includes(get("reward.normalise"))],
    ["reward.clip", !isNone(get("reward.clip"))],
    ["reward.overlong_tokens", get("reward.overlong_tokens") > 0],
  ].filter(([, is]) => is);
  const names = on.map(([name]) => `${name} = ${get(name)}`).join(", ");
  return names && t("run.task_then", { names });
}

export function Task() {
  const rows = run.value?.config ?? [];
  const values = new Map(rows.map(({ key, value }) => [key, value]));
  const get = (key) => values.get(key);
  if (isNone(get("model.path"))) return null;
  const parts = isKid.value ? null : partsOf(get);
  const said = [
    t("run.task", { model: get("model.path"), data: dataOf(get) }),
    ...(parts ? [...scoreOf(parts), thenOf(get)] : []),
  ];
  return html`<p id="task" class="task">${said.filter(Boolean).join(t("run.task_space"))}</p>`;
}
