// Which charts a run has: what each draws, in which unit. Metrics are described in docs/metrics.md.

const NO_PART = ["kl", "kl_coef", "token_reward_mean", "norm_mean", "norm_std", "clipped"];
const isPart = (name) => name.startsWith("reward/") && !NO_PART.includes(name.slice(7));
const isAccuracy = (name) => /^eval\/(.*_accuracy|pass@\d+|maj@\d+)$/.test(name);
const isPhase = (name) => name.startsWith("timing/") && name !== "timing/step";
const oneOf =
  (...names) =>
  (name) =>
    names.includes(name);

// main: the metric that is drawn when runs are compared, and first. lines: all that belong to it.
// unit: "share" is shown as %, "seconds" with s. kid: also for children.
const CHARTS = [
  { id: "accuracy", main: "eval/greedy_accuracy", lines: isAccuracy, unit: "share", kid: true },
  { id: "reward", main: "reward/score_mean", lines: isPart, kid: true },
  { id: "kl", main: "reward/kl", lines: oneOf("reward/kl", "actor/kl_loss"), kid: true },
  { id: "entropy", main: "actor/entropy", kid: true },
  {
    id: "clip",
    main: "actor/pg_clipfrac",
    lines: oneOf("actor/pg_clipfrac", "actor/pg_clipfrac_lower"),
    unit: "share",
  },
  { id: "update", main: "actor/approx_kl" },
  { id: "explained", main: "critic/explained_variance", kid: true },
  { id: "value_loss", main: "critic/vf_loss" },
  {
    id: "length",
    main: "response/length_mean",
    lines: oneOf("response/length_mean", "response/truncated"),
    second: "response/truncated", // a share: it has the axis on the right
    kid: true,
  },
  { id: "gradient", main: "actor/grad_norm", lines: oneOf("actor/grad_norm", "critic/grad_norm") },
  { id: "rate", main: "actor/lr", lines: oneOf("actor/lr", "critic/lr") },
  { id: "time", main: "timing/step", lines: isPhase, stacked: true, unit: "seconds", kid: true },
];
const SHARES = /frac|accuracy|greedy_part|truncated|pass@|maj@|mfu|rejected|clipped$|out_of_range/;

// The unit of a metric by its name.
export const unitOf = (name) => {
  if (SHARES.test(name)) return "share";
  return name.startsWith("timing/") ? "seconds" : "number";
};

const standard = new Set(["timing/step"]);

function filled(chart, names) {
  const belongs = chart.lines ?? ((name) => name === chart.main);
  const found = names.filter(belongs);
  const first = found.includes(chart.main) ? [chart.main] : [];
  const lines = [...first, ...found.filter((name) => name !== chart.main)];
  return { unit: "number", ...chart, lines };
}

// The charts of a run with these metrics, and those of `extra`, metrics by name. A chart without a
// metric is none.
export function chartsOf(names, extra, { kid }) {
  const usual = CHARTS.filter((chart) => chart.kid || !kid).map((chart) => filled(chart, names));
  const chosen = extra
    .filter((name) => names.includes(name))
    .map((name) => ({ id: name, main: name, lines: [name], unit: unitOf(name), extra: true }));
  return [...usual.filter((chart) => chart.lines.length), ...chosen];
}

// Metrics that no standard chart draws.
export function otherMetrics(names) {
  const drawn = new Set(CHARTS.flatMap((chart) => filled(chart, names).lines));
  return names.filter((name) => !drawn.has(name) || standard.has(name));
}
