// Numbers on charts and in tables.

import { has, minus } from "../core/number.js";
import { isKid, lang } from "../core/text.js";

// About three digits: 0.412, 15.3, 1,234, 1.5e−6
function compact(x) {
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size < 1e-3 || size >= 1e6) return minus(x.toExponential(1));
  if (size >= 1000) return minus(Math.round(x).toLocaleString("en-US"));
  return minus(Number(x.toPrecision(3)).toString());
}

export function shownValue(x, unit) {
  if (!has(x)) return "–";
  if (unit === "seconds" && x > 0 && x < 0.01) return "< 0.01 s";
  if (unit === "share") return share(100 * x);
  const text = isKid.value ? minus(x.toFixed(Math.abs(x) < 10 ? 1 : 0)) : compact(x);
  return unit === "seconds" ? `${text} s` : text;
}

// 12.3 %, 0.04 %, < 0.01 %: what happened is not called 0.
function share(x) {
  if (isKid.value) return `${minus(x.toFixed(0))} %`;
  if (x > 0 && x < 0.01) return "< 0.01 %";
  return `${minus(x.toFixed(x > 0 && x < 0.1 ? 2 : 1))} %`;
}

// A setting: 4e-6 instead of 0.000004, as one types it.
export function settingText(value) {
  if (value === null || value === undefined) return "none";
  const isSmall = has(value) && value !== 0 && Math.abs(value) < 1e-3;
  return isSmall ? value.toExponential() : String(value);
}

// The labels of an axis: as many decimals as the distance of two of them needs.
export function tickLabels(ticks, unit) {
  const there = ticks.filter(has);
  const gap = there.length > 1 ? Math.abs(there[1] - there[0]) : Math.abs(there[0] ?? 1);
  const scale = unit === "share" ? 100 : 1;
  const decimals = Math.max(0, -Math.floor(Math.log10(gap * scale) + 1e-9));
  return ticks.map((x) => {
    if (!has(x)) return "";
    if (x === 0) return unit === "share" ? "0 %" : "0";
    if (unit === "seconds" && x > 0 && x < 0.01) return "< 0.01 s";
    if (unit === "share") return `${minus((100 * x).toFixed(Math.min(decimals, 3)))} %`;
    if (decimals > 4) return minus(x.toExponential(mantissa(x, gap)));
    if (Math.abs(x) >= 10000) return minus(compact(x));
    return minus(x.toFixed(decimals));
  });
}

const mantissa = (x, gap) =>
  Math.max(
    0,
    Math.min(2, Math.floor(Math.log10(Math.abs(x))) - Math.floor(Math.log10(gap) + 1e-9)),
  );

// Labels on a logarithmic axis: powers of ten; over less than two decades also 2 and 5 times them.
export function logLabels(ticks, unit) {
  const there = ticks.filter((x) => has(x) && x > 0);
  const digits = Math.max(...there) / Math.min(...there) > 50 ? ["1"] : ["1", "2", "5"];
  return ticks.map((x) => {
    if (!has(x) || x <= 0 || !digits.includes(x.toExponential(0)[0])) return "";
    return unit === "share" ? `${Number((100 * x).toPrecision(1))} %` : compactPower(x);
  });
}

const compactPower = (x) =>
  x >= 1e-3 && x < 1e4 ? String(Number(x.toPrecision(1))) : minus(x.toExponential(0));

// ---- time ----

const UNITS = {
  en: { s: " s", min: " min", h: " h", d: " d" },
  zh: { s: " 秒", min: " 分钟", h: " 小时", d: " 天" },
};

// Seconds as "12 s", "4 min", "3 h 20 min", "5 d"
export function time(seconds) {
  if (!has(seconds)) return "–";
  const unit = UNITS[lang.value];
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole}${unit.s}`;
  const minutes = Math.round(whole / 60);
  if (minutes < 90) return `${minutes}${unit.min}`;
  const hours = Math.floor(minutes / 60);
  if (hours >= 48) return `${Math.round(hours / 24)}${unit.d}`;
  return `${hours}${unit.h} ${minutes % 60}${unit.min}`;
}
