// Where the data comes from: a server beside the run, or the report that this page is part of.

import { $ } from "./tools.js";
import { store } from "./state.js";

async function get(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  if (answer.ok) return answer.json();
  const { error } = await answer.json().catch(() => ({}));
  throw new Error(error ?? `HTTP ${answer.status}`);
}

function query(step, ids, { est, gamma, lam }) {
  const asked = new URLSearchParams({ estimator: est, gamma, ids: ids.join(",") });
  if (lam !== null) asked.set("lam", lam);
  return `api/step/${step}/whatif?${asked}`;
}

const server = () => ({
  live: true,
  run: () => get("api/run"),
  index: async (step) => {
    const { index, estimators, paths } = await get(`api/step/${step}/samples`);
    return { index: index.map((row, position) => ({ ...row, position })), estimators, paths };
  },
  samples: async (step, ids) => {
    const { samples } = await get(`api/step/${step}/samples?ids=${ids.join(",")}`);
    return samples;
  },
  traces: (step, sample, t) => get(`api/step/${step}/sample/${sample.position}?t=${t}`),
  count: () => store.index.length,
  stepsOf: async (key) => (await get(`api/prompt/${key}`)).steps,
  grid: () => null,
  canTry: () => true,
  whatIf: async (step, ids, wanted) => (await get(query(step, ids, wanted))).samples,
  whatIfTerms: async (step, ids, wanted, position, t) =>
    (await get(`${query(step, ids, wanted)}&sample=${position}&t=${t}`)).terms,
  ask: (step, position, { text, after, token, level, lang }) => {
    const asked = new URLSearchParams({ text, level });
    for (const each of after) asked.append("after", each);
    if (token !== null) asked.set("token", token);
    if (lang !== null) asked.set("lang", lang);
    return get(`api/step/${step}/sample/${position}/ask?${asked}`);
  },
});

// A report has no server: it holds the what-ifs of a small grid, or none.
const report = ({ run, steps, words }) => ({
  live: false,
  run: async () => run,
  index: async (step) => {
    const { samples, estimators, paths } = steps[step];
    const index = samples.map(({ index_row, position }) => ({ ...index_row, position }));
    return { index, estimators, paths };
  },
  samples: async (step, ids) =>
    steps[step].samples.filter((sample) => ids.includes(sample.position)),
  traces: async (step, sample, t) =>
    sample.traces[t] ? { traces: sample.traces[t], words } : null,
  count: (step) => steps[step].count,
  stepsOf: async (key) =>
    run.steps.filter((step) =>
      steps[step].samples.some((sample) => sample.index_row.prompt_key === key),
    ),
  grid: (step) => steps[step]?.whatif ?? null,
  canTry: (step) => Boolean(steps[step]?.whatif),
  whatIf: (step, ids, { est, gamma, lam }) => {
    const { gammas, lams, results } = steps[step].whatif;
    return results[`${est}/${gammas.indexOf(gamma)}/${lams.indexOf(lam)}`] ?? [];
  },
  whatIfTerms: async () => null,
});

export const source = $("data") ? report(JSON.parse($("data").textContent)) : server();
