// One page, two homes: live beside runs (telescope.viewer.server), or inlined in a report.
//
// Every sentence about a number comes from Python. Text that a model wrote enters the document as
// text nodes alone.

import { CompareView } from "./compare/compare_view.js";
import { poll, runs, viewShown } from "./core/data.js";
import { Loaded } from "./core/parts.js";
import { listenToAddress } from "./core/state.js";
import { Header } from "./run/header.js";
import { RunView } from "./run/run_view.js";
import { RunsView } from "./run/runs_view.js";
import { StepBar } from "./run/step_bar.js";
import { SamplesView } from "./samples/samples_view.js";
import { openTourOnce } from "./tour/first_visit.js";
import { TourView } from "./tour/tour_view.js";
import { html, render } from "./vendor/preact.js";

const VIEWS = {
  runs: RunsView,
  run: RunView,
  samples: SamplesView,
  compare: CompareView,
  tour: TourView,
};
const WITH_STEP = ["run", "samples", "compare"];

function App() {
  const shown = viewShown.value;
  const View = VIEWS[shown];
  return html`
    <${Header} />
    ${WITH_STEP.includes(shown) ? html`<${StepBar} />` : null}
    <main class=${`view-${shown}`}>
      ${View ? html`<${View} />` : html`<${Loaded} from=${runs}>${() => null}</${Loaded}>`}
    </main>
  `;
}

listenToAddress();
openTourOnce();
render(html`<${App} />`, document.getElementById("app"));
document.documentElement.dataset.ready = "1";
poll();
