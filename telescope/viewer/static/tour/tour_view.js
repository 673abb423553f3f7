// The tour: one picture that grows, a guess before each truth.

import { run, sampleShown, stepShown } from "../core/data.js";
import { Loaded, Segment } from "../core/parts.js";
import { go, state } from "../core/state.js";
import { isKid, t } from "../core/text.js";
import { html, useEffect, useRef } from "../vendor/preact.js";
import { GroupPicture } from "./group_picture.js";
import { chooseOption, chooseToken, Guess, Verdict } from "./guess.js";
import { Picture } from "./picture.js";
import {
  back,
  current,
  forward,
  goTo,
  isEnd,
  isExample,
  isRevealed,
  pin,
  say,
  stepIndex,
  steps,
  stop,
  tour,
  tourData,
} from "./tour_data.js";
import { TourEnd } from "./tour_end.js";

const leave = () => go({ view: state.example.value ? "run" : "samples", stop: 0 });

const toCurves = () => go({ view: "run", stop: 0, example: null });

// The steps as buttons with their symbols and names.
function Progress() {
  return html`
    <nav class=${isKid.value ? "tour-progress kid" : "tour-progress"} aria-label=${t("tour.steps")}>
      ${steps.value.map((step, n) => {
        const name = `${n + 1}. ${say(step.title)}`;
        const at = n === stepIndex.value ? "step" : null;
        const kind = n < stepIndex.value ? "done" : "";
        return html`
          <button
            key=${step.id}
            type="button"
            class=${kind}
            aria-current=${at}
            aria-label=${name}
            title=${name}
            onClick=${() => goTo(2 * n)}
          >
            <span>${n + 1}</span> <b>${say(step.symbol)}</b>
            ${isKid.value ? null : html`<small>${t(`tour.name.${step.id}`)}</small>`}
          </button>
        `;
      })}
    </nav>
  `;
}

function Text({ lines, kind }) {
  return html`<div class=${kind}>${lines.map((line) => html`<p key=${line}>${line}</p>`)}</div>`;
}

function Card() {
  const step = current.value;
  const asks = !isRevealed.value;
  return html`
    <h2 id="tour-title">${say(step.title)}</h2>
    <${Text} kind="tour-ask" lines=${say(step.ask)} />
    <div aria-live="polite">
      ${
        asks
          ? null
          : html`<${Verdict} step=${step} />
              <${Text} kind="tour-reveal" lines=${say(step.reveal)} />`
      }
    </div>
    ${asks ? html`<${Guess} step=${step} />` : null}
  `;
}

function Buttons() {
  const asks = !isRevealed.value && !isEnd.value;
  return html`
    <div class="tour-buttons">
      <button id="tour-back" type="button" disabled=${stop.value === 0} onClick=${back}>
        ← ${t("tour.back")}
      </button>
      <span class="spring"></span>
      ${
        isEnd.value
          ? null
          : html`
              <button
                id="tour-next"
                type="button"
                class=${asks ? "" : "tour-main"}
                data-first=${asks ? null : "1"}
                onClick=${forward}
              >
                ${t(asks ? "tour.skip" : "tour.next")} →
              </button>
            `
      }
    </div>
  `;
}

// What the tour is about, and how to leave it.
function Bar() {
  const place = t("tour.place", { step: stepShown.value, sample: sampleShown.value });
  const options = [
    ["run", place],
    ["example", t("tour.example")],
  ];
  return html`
    <div class="tour-bar">
      ${
        sampleShown.value === null
          ? html`<span class="quiet">${t("tour.example")}</span>`
          : html`<${Segment}
              id="tour-source"
              label=${t("tour.source")}
              options=${options}
              value=${isExample.value ? "example" : "run"}
              choose=${(each) => go({ example: each === "example" ? true : null, stop: 0 })}
            />`
      }
      <span class="spring"></span>
      ${
        run.value === null
          ? null
          : html`<button id="tour-curves" class="tour-main" type="button" onClick=${toCurves}>
              ${t("tour.toCurves")}
            </button>`
      }
      <button id="tour-leave" type="button" aria-label=${t("tour.leave")} onClick=${leave}>
        <span class="wide">${t("tour.leave")} </span>✕
      </button>
    </div>
  `;
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = current.value;
  const isSlider = event.target.type === "range";
  if (event.key === "Escape") leave();
  else if (/^[1-3]$/.test(event.key) && step && !isRevealed.value) {
    chooseOption(step, Number(event.key));
  } else if (event.key === "ArrowRight" && !isSlider) forward();
  else if (event.key === "ArrowLeft" && !isSlider) back();
  else return;
  event.preventDefault();
}

// A long answer in full: the picture shows a part of it.
function WholeAnswer() {
  const [{ cells, length, response }] = tour.value.answers;
  if (cells.length === length) return null;
  return html`
    <details class="tour-whole">
      <summary>${t("tour.whole", { shown: cells.length, all: length })}</summary>
      <p>${response}</p>
    </details>
  `;
}

function Stage() {
  const root = useRef(null);
  useEffect(pin, [isExample.value]);
  // The keyboard is always where the visitor goes on.
  useEffect(() => {
    root.current?.querySelector("[data-first]")?.focus({ preventScroll: true });
  }, [stop.value, tour.value !== null]);
  const choose = (token) => {
    if (current.value && !isRevealed.value) chooseToken(current.value, token);
  };
  return html`
    <section ref=${root} id="tour" class="panel tour" aria-labelledby="tour-title" onKeyDown=${onKey}>
      <${Bar} />
      <${Progress} />
      <div class="tour-body">
        <div class="tour-card">
          ${isEnd.value ? html`<${TourEnd} leave=${leave} />` : html`<${Card} />`}
          <${Buttons} />
        </div>
        <div class="tour-picture">
          ${
            tour.value.prompt &&
            html`<p class="tour-prompt"><span class="quiet">${t("tour.prompt")}</span> ${tour.value.prompt}</p>`
          }
          <${WholeAnswer} />
          <${Picture} choose=${choose} />
          ${tour.value.kind === "outcome" ? html`<${GroupPicture} />` : null}
        </div>
      </div>
    </section>
  `;
}

export function TourView() {
  return html`<${Loaded} from=${tourData}>${() => html`<${Stage} />`}</${Loaded}>`;
}
