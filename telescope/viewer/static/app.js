// One page, two homes: live beside runs (telescope.viewer.server), or inlined in a report.
//
// Every sentence about a number comes from Python. Text that a model wrote enters the document as
// text nodes alone.

import { CompareView } from "./compare/compare_view.js";
import { poll } from "./core/data.js";
import { listenToAddress, state } from "./core/state.js";
import { Header } from "./run/header.js";
import { RunView } from "./run/run_view.js";
import { RunsView } from "./run/runs_view.js";
import { SamplesView } from "./samples/samples_view.js";
import { TourView } from "./tour/tour_view.js";
import { html, render } from "./vendor/preact.js";

const VIEWS = {
  runs: RunsView,
  run: RunView,
  samples: SamplesView,
  compare: CompareView,
  tour: TourView,
};

function App() {
  const View = VIEWS[state.view.value];
  return html`
    <${Header} />
    <main class=${`view-${state.view.value}`}><${View} /></main>
  `;
}

listenToAddress();
render(html`<${App} />`, document.getElementById("app"));
document.documentElement.dataset.ready = "1";
poll();
