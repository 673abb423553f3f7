// Samples for comparing, loaded when they are drawn and kept for a while.

import { runId } from "../core/data.js";
import { remembered } from "../token/terms_data.js";
import { useEffect, useState } from "../vendor/preact.js";

const inRun = (id) => `api/runs/${encodeURIComponent(id)}`;
// `kind`: "eval" for an answer of the evaluation after a step.
export const samplePath = ({ run = runId.value, step, position, kind = "step" }) =>
  `${inRun(run)}/${kind === "eval" ? "evaluations" : "steps"}/${step}/samples/${position}`;
export const promptsPath = () => `${inRun(runId.value)}/prompts`;
export const promptPath = (key, run = runId.value) => `${inRun(run)}/prompts/${key}`;
export const stepPath = (step, run) => `${inRun(run)}/steps/${step}`;
export const runPath = (run) => inRun(run);

const NONE = { value: null, error: null, path: null };

// {value, error} of a path; null: nothing to load. `ask` fetches.
export function useAnswer(path, ask = remembered) {
  const [found, setFound] = useState(NONE);
  useEffect(() => {
    if (path === null) return setFound(NONE);
    let isWanted = true;
    ask(path).then(
      (value) => isWanted && setFound({ value, error: null, path }),
      (error) => isWanted && setFound({ value: null, error, path }),
    );
    return () => {
      isWanted = false;
    };
  }, [path]);
  return found.path === path ? found : NONE;
}
