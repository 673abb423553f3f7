// Small parts that every panel uses.

import { html } from "../vendor/preact.js";
import { NotFound } from "./source.js";
import { t } from "./text.js";

// A titled panel. `bar`: what stands beside the title.
export function Panel({ id, title, bar = null, children }) {
  return html`
    <section id=${id} class="panel" aria-labelledby=${`${id}-title`}>
      <div class="bar"><h2 id=${`${id}-title`}>${title}</h2>${bar}</div>
      ${children}
    </section>
  `;
}

// Buttons of which one is pressed. `options`: [[value, label], …], or [value, sign, its name]
export function Segment({ id, label, options, value, choose, disabled = false }) {
  return html`
    <span id=${id} class="seg" role="group" aria-label=${label}>
      ${options.map(
        ([each, sign, name]) => html`
          <button
            key=${each}
            type="button"
            data-value=${each}
            aria-pressed=${each === value ? "true" : "false"}
            aria-label=${name}
            title=${name}
            disabled=${disabled}
            onClick=${() => choose(each)}
          >
            ${sign}
          </button>
        `,
      )}
    </span>
  `;
}

// A resource's content, or what is in its way. `children` is a function of the value.
export function Loaded({ from, children }) {
  const { value, error, loading } = from;
  if (value !== null) {
    return html`${error ? html`<${Trouble} error=${error} retry=${from.reload} />` : null}
      ${children(value)}`;
  }
  if (error) return html`<${Trouble} error=${error} retry=${from.reload} />`;
  return loading ? html`<p class="quiet" role="status">${t("page.loading")}</p>` : null;
}

export function Trouble({ error, retry }) {
  if (error instanceof NotFound && !error.message.includes(" ")) {
    return html`<p class="quiet" role="status">${t("page.absent")}</p>`;
  }
  return html`
    <p class="trouble" role="alert">
      ${t("page.error", { error: error.message })}
      ${retry ? html` <button type="button" onClick=${retry}>${t("page.retry")}</button>` : null}
    </p>
  `;
}
