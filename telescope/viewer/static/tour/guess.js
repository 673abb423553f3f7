// What the visitor says before the truth is shown, and how far off it was.

import { t } from "../core/text.js";
import { html, useEffect } from "../vendor/preact.js";
import { forward, guessOf, isRight, middle, pending, say, setGuess } from "./tour_data.js";
import { apart, shown } from "./tour_number.js";

function answer(step, value) {
  setGuess(step, value);
  forward();
}

const labelOf = (option) =>
  option.token === undefined ? say(option.label) : `« ${say(option.label)} »`;

function Choice({ step }) {
  return html`
    <div class="tour-options" role="group" aria-label=${t("tour.guess")}>
      ${step.guess.options.map(
        (option, n) => html`
          <button
            key=${option.id}
            type="button"
            data-option=${option.id}
            data-first=${n === 0 ? "1" : null}
            onClick=${() => answer(step, option.id)}
          >
            <kbd aria-hidden="true">${n + 1}</kbd> ${labelOf(option)}
          </button>
        `,
      )}
    </div>
  `;
}

function Slider({ step }) {
  const { guess } = step;
  useEffect(() => {
    pending.value = guessOf(step) ?? middle(guess);
    return () => {
      pending.value = null;
    };
  }, [step]);
  const value = pending.value ?? middle(guess);
  const set = (event) => {
    pending.value = Number(event.currentTarget.value);
  };
  return html`
    <div class="tour-slider">
      <output for="tour-range">${shown(value, { unit: guess.unit })}</output>
      <div class="tour-range">
        <span class="quiet">${shown(guess.low, { unit: guess.unit })}</span>
        <input
          id="tour-range"
          type="range"
          data-first="1"
          aria-label=${t("tour.guess")}
          aria-valuetext=${shown(value, { unit: guess.unit })}
          min=${guess.low}
          max=${guess.high}
          step=${guess.step}
          value=${value}
          onInput=${set}
          onKeyDown=${(event) => {
            if (event.key === "Enter") answer(step, value);
          }}
        />
        <span class="quiet">${shown(guess.high, { unit: guess.unit })}</span>
      </div>
      <button id="tour-say" class="tour-main" type="button" onClick=${() => answer(step, value)}>
        ${t("tour.say")}
      </button>
    </div>
  `;
}

export function Guess({ step }) {
  return html`
    <div class="tour-guess" key=${step.id}>
      ${step.guess.kind === "choice" ? html`<${Choice} step=${step} />` : html`<${Slider} step=${step} />`}
    </div>
  `;
}

// Chooses the option with this number, counted from 1.
export function chooseOption(step, number) {
  const option = step.guess.options?.[number - 1];
  if (option) answer(step, option.id);
}
export function chooseToken(step, token) {
  const option = step.guess.options?.find((each) => each.token === token);
  if (option) answer(step, option.id);
}

// ---- how it went ----

function chosenText(guess, said) {
  const option = guess.options.find((each) => each.id === said);
  return option ? labelOf(option) : said;
}

function verdict(step, said) {
  const { guess } = step;
  if (guess.kind === "choice") {
    if (isRight(step, said)) return t("tour.right", { guess: chosenText(guess, said) });
    const truths = guess.truth.map((each) => chosenText(guess, each));
    const key = truths.length ? "tour.wrong" : "tour.none";
    return t(key, { guess: chosenText(guess, said), truth: truths.join(" / ") });
  }
  const write = (x) => shown(x, { unit: guess.unit });
  const values = {
    guess: write(said),
    truth: write(guess.truth),
    off: apart(write(said), write(guess.truth)),
  };
  if (write(said) === write(guess.truth)) return t("tour.exact", values);
  return t(isRight(step, said) ? "tour.close" : "tour.off", values);
}

export function Verdict({ step }) {
  const said = guessOf(step);
  if (said === null) return null;
  const good = isRight(step, said);
  return html`
    <p class=${`tour-verdict ${good ? "good" : "not"}`}>
      <span aria-hidden="true">${good ? "✓" : "≠"}</span> ${verdict(step, said)}
    </p>
  `;
}
