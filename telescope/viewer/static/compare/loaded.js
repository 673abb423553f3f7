// Samples for comparing, loaded when they are drawn and kept for a while.

import { pathOf, runId } from "../core/data.js";
import { remembered } from "../token/terms_data.js";
import { useEffect, useState } from "../vendor/preact.js";

// `kind`: "eval" for an answer of the evaluation after a step.
export const samplePath = ({ run = runId.value, step, position, kind = "step" }) =>
  pathOf(run, `/${kind === "eval" ? "evaluations" : "steps"}/${step}/samples/${position}`);
export const promptPath = (key, run = runId.value) => pathOf(run, `/prompts/${key}`);

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
