// Small parts that every panel uses.

import { html, useRef } from "../vendor/preact.js";
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
export function Segment({ id, label, options, value, choose }) {
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
            onClick=${() => choose(each)}
          >
            ${sign}
          </button>
        `,
      )}
    </span>
  `;
}

// A button that stays pressed.
export function Toggle({ isOn, press, children, ...others }) {
  return html`
    <button type="button" aria-pressed=${isOn ? "true" : "false"} onClick=${press} ...${others}>
      ${children}
    </button>
  `;
}

// A check mark with its label. `change` gets whether it is set.
export function Check({ id, label, checked, change }) {
  return html`
    <label class="tool">
      <input
        id=${id} type="checkbox" checked=${Boolean(checked)}
        onChange=${(event) => change(event.target.checked)}
      />
      ${label}
    </label>
  `;
}

// A list to choose from. `options`: [[value, label], …], or [value, label, more attributes]
export function Choice({ id, label, value, options, choose }) {
  return html`
    <label class="field" for=${id}>
      <span>${label}</span>
      <select id=${id} value=${value} onChange=${(event) => choose(event.target.value)}>
        ${options.map(
          ([each, name, more]) =>
            html`<option key=${each} value=${each} selected=${each === value} ...${more}>${name}</option>`,
        )}
      </select>
    </label>
  `;
}

// A field for a search; `search` is a signal.
export function SearchBox({ id, label, search }) {
  return html`<input
    id=${id} type="search" placeholder=${label} aria-label=${label} value=${search.value}
    onInput=${(event) => {
      search.value = event.target.value;
    }}
  />`;
}

// A slider. One drag is one step of the back button: `change(value, {replace})`.
export function Slider({ change, ...others }) {
  const isDragged = useRef(false);
  const onInput = (event) => {
    change(Number(event.target.value), { replace: isDragged.current });
    isDragged.current = true;
  };
  const onChange = () => {
    isDragged.current = false;
  };
  return html`<input type="range" onInput=${onInput} onChange=${onChange} ...${others} />`;
}

// A table that scrolls sideways. `head`: [[key, what stands there], …]
export function Table({ kind = "", head, children }) {
  return html`
    <div class="scroll">
      <table class=${`settings ${kind}`}>
        <thead>
          <tr>${head.map(([key, name]) => html`<th key=${key} scope="col">${name}</th>`)}</tr>
        </thead>
        <tbody>${children}</tbody>
      </table>
    </div>
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
