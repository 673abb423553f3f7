// The bar at the top: which run, which part of the page, liveness, language and colours.

import { run, runId, runs, viewShown } from "../core/data.js";
import { Segment, Toggle } from "../core/parts.js";
import { go, LANGS, state, THEMES } from "../core/state.js";
import { isKid, lang, t } from "../core/text.js";
import { effect, html } from "../vendor/preact.js";
import { Liveness } from "./liveness.js";

const PARTS = ["run", "samples", "compare", "tour"];
const NAMES = { zh: "中文", en: "English" };
const THEME_SIGNS = { auto: "◐", light: "☀", dark: "☾" };

// The browser's tab says how far the run is.
effect(() => {
  const found = viewShown.value === "runs" ? null : run.value;
  const name = found?.name ?? runs.value?.folder;
  const progress = found?.total_steps ? ` ${found.step}/${found.total_steps}` : "";
  document.title = name ? `${name}${progress} – Telescope` : "Telescope";
});

export function Header() {
  const isFolder = runs.value && !runs.value.single;
  const parts = isFolder ? ["runs", ...PARTS] : PARTS;
  return html`
    <header>
      <h1>Telescope</h1>
      ${isFolder ? html`<${RunChoice} />` : html`<${RunName} />`}
      <nav aria-label=${t("page.views")}>
        <${Segment}
          id="views"
          label=${t("page.views")}
          options=${parts.map((view) => [view, t(`view.${view}`)])}
          value=${viewShown.value}
          choose=${(view) => go({ view })}
        />
      </nav>
      <span class="spring"></span>
      <${Liveness} />
      <${Segment}
        id="lang"
        label=${t("page.lang")}
        options=${LANGS.map((each) => [each, NAMES[each]])}
        value=${lang.value}
        choose=${(each) => go({ lang: each })}
      />
      <${Toggle} id="kid" isOn=${isKid.value} press=${() => go({ kid: isKid.value ? null : true })}>
        ${t("page.kid")}
      </${Toggle}>
      <${Segment}
        id="theme"
        label=${t("page.theme")}
        options=${THEMES.map((each) => [each, THEME_SIGNS[each], t(`page.theme.${each}`)])}
        value=${state.theme.value}
        choose=${(theme) => go({ theme })}
      />
    </header>
  `;
}

function RunName() {
  return html`<span id="run-name" class="run-name">${run.value?.name ?? ""}</span>`;
}

// Another run of the folder, on the same part of the page.
function RunChoice() {
  if (viewShown.value === "runs") return null;
  const choose = (event) =>
    go({
      run: event.target.value,
      step: null,
      sample: null,
      token: null,
    });
  return html`<select id="run-name" class="run-name" aria-label=${t("page.run")} onChange=${choose}>
    ${runs.value.runs.map(
      ({ id, name }) => html`<option key=${id} value=${id} selected=${id === runId.value}>
        ${name}
      </option>`,
    )}
  </select>`;
}
