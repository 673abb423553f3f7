// What if: another estimator, γ, λ or loss, and a sentence that says what is compared with what.

import { batchSize } from "../core/batch.js";
import { step } from "../core/data.js";
import { num, percent } from "../core/number.js";
import { Check, Choice, Panel, Trouble } from "../core/parts.js";
import { isLive } from "../core/source.js";
import { go, state } from "../core/state.js";
import { isKid, lang, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { resetAll, tried, trySetting } from "./tried.js";
import { asked, changed, clipFractions, isPending, settingsShown, whitening } from "./whatif.js";

const STEP = 0.005;

export function Controls({ sample }) {
  const now = tried.value;
  if (now === null) return null;
  return html`
    <${Panel} id="whatif" title=${t("whatif.title")} bar=${html`<${Reset} />`}>
      <div class="whatif-row">
        ${isKid.value ? null : html`<${EstimatorChoice} offer=${now.offer} />`}
        <${Gamma} offer=${now.offer} gamma=${now.gamma} />
        <${Lam} now=${now} sample=${sample} />
        ${isKid.value ? null : html`<${OwnSettings} now=${now} />`}
        <${Whiten} offer=${now.offer} whiten=${now.whiten} />
        ${isKid.value ? null : html`<${LossChoice} loss=${now.loss} />`}
      </div>
      <${Said} now=${now} />
      ${isKid.value ? null : html`<${Reasons} />`}
    </${Panel}>
  `;
}

function Reset() {
  return html`
    <span class="spring"></span>
    <button id="reset" type="button" disabled=${!changed.value} onClick=${resetAll}>
      ${t("whatif.reset")}
    </button>
  `;
}

// ---- which estimator, which loss ----

// A list of which some entries cannot be chosen: they say why.
function Offers({ offers, ...others }) {
  const options = offers.map(({ name, label, formula, available, why_not }) => [
    name,
    label,
    { disabled: !available, title: why_not?.[lang.value] ?? formula },
  ]);
  return html`<${Choice} options=${options} ...${others} />`;
}

function EstimatorChoice({ offer }) {
  const { offers, settings } = step.value;
  const choose = (name) =>
    go({ est: name === settings.estimator ? null : name, lam: null, own: null, whiten: null });
  return html`
    <${Offers}
      id="estimator" label=${t("whatif.estimator")} offers=${offers}
      value=${offer.name} choose=${choose}
    />
    <code id="formula" class="quiet" title=${offer.words[lang.value]}>${offer.formula}</code>
  `;
}

function LossChoice({ loss }) {
  const { losses, settings } = step.value;
  if (!losses?.length) return null;
  const choose = (name) => go({ loss: name === settings.loss ? null : name });
  const shares = clipFractions.value;
  return html`
    <${Offers}
      id="loss" label=${t("whatif.loss")} offers=${losses} value=${loss} choose=${choose}
    />
    ${
      shares === null
        ? null
        : html`<span id="clip-shares" class="quiet">
            ${t("whatif.clipped", { before: percent(shares.recorded), now: percent(shares.now) })}
          </span>`
    }
  `;
}

// ---- numbers ----

// A number from 0 to 1. While it is dragged the address stays; where it comes to rest is a step of
// the back button.
function Slider({ name, label, value, recorded }) {
  const read = (event) => Number(event.target.value);
  return html`
    <label class="field" for=${name}>
      <span>${label}</span>
      <input
        id=${name} type="range" min="0" max="1" step=${STEP} value=${value}
        onInput=${(event) => {
          state[name].value = read(event);
        }}
        onChange=${(event) => go({ [name]: read(event) === recorded ? null : read(event) })}
      />
      <output id=${`${name}-now`} for=${name} class="mono">${num(value, { digits: 3 })}</output>
    </label>
  `;
}

function Gamma({ offer, gamma }) {
  if (!offer.discounts) return null;
  const recorded = step.value.settings.gamma;
  return html`<${Slider} name="gamma" label=${t("whatif.gamma")} value=${gamma} recorded=${recorded} />`;
}

function Lam({ now, sample }) {
  if (now.offer.recursion !== "lam") return null;
  const byLength = now.settings.lam_alpha ?? null;
  const value = sample ? settingsShown(sample).lam : now.settings.lam;
  const recorded = byLength === null ? now.offer.lam : null;
  return html`
    <${Slider} name="lam" label=${t("whatif.lam")} value=${value} recorded=${recorded} />
    ${
      byLength === null || isKid.value
        ? null
        : html`<span id="lam-by-length" class="quiet">
            ${t("whatif.by_length", { alpha: num(byLength) })}
          </span>`
    }
  `;
}

// The estimator's other settings, each a number.
function OwnSettings({ now }) {
  const others = now.offer.settings.filter(({ name }) => name !== "lam");
  return others.map(
    (setting) => html`<${OwnSetting} setting=${setting} value=${now.settings[setting.name]} />`,
  );
}

function OwnSetting({ setting, value }) {
  const { name, low, high, integer, optional, about } = setting;
  if (optional && value === null && setting.value === null) return null;
  function choose(event) {
    const text = event.target.value;
    if (text === "" && optional) trySetting(setting, null);
    else if (text !== "" && event.target.checkValidity()) trySetting(setting, Number(text));
  }
  return html`
    <label class="field" for=${`own-${name}`} title=${about}>
      <span class="mono">${name}</span>
      <input
        id=${`own-${name}`} type="number" class="short" value=${value ?? ""}
        min=${low ?? undefined} max=${high ?? undefined} step=${integer ? 1 : "any"}
        onChange=${choose}
      />
    </label>
  `;
}

function Whiten({ offer, whiten }) {
  const change = (on) => go({ whiten: on === offer.whiten ? null : on ? "1" : "0" });
  return html`<${Check} id="whiten" label=${t("whatif.whiten")} checked=${whiten} change=${change} />`;
}

// ---- what is compared ----

function samplesSaid() {
  const n = step.value.index.length;
  if (!isLive) return t("whatif.samples.file", { n });
  const every = batchSize();
  if (every === null) return t("whatif.samples", { n });
  return t(every === n ? "whatif.samples.all" : "whatif.samples.of", { n, every });
}

function whiteningSaid(now) {
  if (!now.whiten) return t("whatif.whitening.off");
  const { mean, std } = whitening.value ?? {};
  const numbers = { mean: num(mean), std: num(std) };
  const isScaled = step.value.settings.whiten;
  return t(isScaled ? "whatif.whitening.scaled" : "whatif.whitening.plain", numbers);
}

function Said({ now }) {
  if (!now.changed) return html`<p id="whatif-said" class="quiet">${t("whatif.recorded")}</p>`;
  if (asked.error && !isPending.value && whitening.value === null)
    return html`<${Trouble} error=${asked.error} retry=${asked.reload} />`;
  if (isPending.value) return html`<p id="whatif-said" role="status">${t("whatif.pending")}</p>`;
  const sentences = [t("whatif.changed", { samples: samplesSaid() }), whiteningSaid(now)];
  if (now.offer.needs.groups) sentences.push(t("whatif.groups"));
  if ((now.settings.lam_critic ?? null) !== null && !isKid.value)
    sentences.push(t("whatif.lam_critic", { lam: num(now.settings.lam_critic) }));
  if (now.offer.note && !isKid.value)
    sentences.push(`${now.offer.note[lang.value]}${t("whatif.stop")}`);
  return html`<p id="whatif-said" class="said">${sentences.join(" ")}</p>`;
}

function Reasons() {
  const refused = [...step.value.offers, ...(step.value.losses ?? [])].filter(
    (offer) => !offer.available,
  );
  if (!refused.length) return null;
  return html`
    <details id="whatif-reasons">
      <summary>${t("whatif.refused", { n: refused.length })}</summary>
      <ul>
        ${refused.map(
          (offer) =>
            html`<li data-offer=${offer.name}>
              <b>${offer.label}</b>${" "}${offer.why_not[lang.value]}
            </li>`,
        )}
      </ul>
    </details>
  `;
}
