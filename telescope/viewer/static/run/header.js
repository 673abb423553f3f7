// The bar at the top: which run, which part of the page, language and colours.

import { run, runs } from "../core/data.js";
import { Segment } from "../core/parts.js";
import { go, LANGS, state, THEMES } from "../core/state.js";
import { lang, t } from "../core/text.js";
import { html } from "../vendor/preact.js";

const PARTS = ["run", "samples", "compare", "tour"];
const NAMES = { zh: "中文", en: "English" };

export function Header() {
  const parts = runs.value && !runs.value.single ? ["runs", ...PARTS] : PARTS;
  return html`
    <header>
      <h1>Telescope</h1>
      <span id="run-name" class="run-name">${run.value?.name ?? ""}</span>
      <nav aria-label=${t("page.views")}>
        <${Segment}
          id="views"
          label=${t("page.views")}
          options=${parts.map((view) => [view, t(`view.${view}`)])}
          value=${state.view.value}
          choose=${(view) => go({ view })}
        />
      </nav>
      <span class="spring"></span>
      <${Segment}
        id="lang"
        label=${t("page.lang")}
        options=${LANGS.map((each) => [each, NAMES[each]])}
        value=${lang.value}
        choose=${(each) => go({ lang: each })}
      />
      <button
        id="kid"
        type="button"
        aria-pressed=${state.kid.value ? "true" : "false"}
        onClick=${() => go({ kid: state.kid.value ? null : true })}
      >
        ${t("page.kid")}
      </button>
      <${Segment}
        id="theme"
        label=${t("page.theme")}
        options=${THEMES.map((each) => [each, t(`page.theme.${each}`)])}
        value=${state.theme.value}
        choose=${(theme) => go({ theme })}
      />
    </header>
  `;
}
