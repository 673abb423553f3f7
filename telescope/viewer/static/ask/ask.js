// The question box: a question in the reader's own words, answered by the server about the sample
// on the screen. What comes back is text.

import { tokenPath } from "../core/data.js";
import { Panel, Trouble } from "../core/parts.js";
import { get, isLive } from "../core/source.js";
import { isKid, t } from "../core/text.js";
import { tokenSeen } from "../token/chosen.js";
import { html, signal } from "../vendor/preact.js";

const ASKED_LENGTH = 300;
const ASKED_BEFORE = 6; // messages that a follow-up may build on

// {asked, reply, error, retry}
const shown = signal({ asked: "", reply: null, error: null, retry: null });
const typed = signal("");
const memory = { before: [], of: null, turn: 0 };

// Follow-ups build on messages about the same sample.
function askedBefore({ step, position }) {
  const of = `${step}/${position}`;
  if (memory.of !== of) Object.assign(memory, { of, before: [] });
  return memory.before;
}

// The question, and the latest of its follow-ups.
function followed([question, ...later], text) {
  return [question, ...[...later, text].slice(1 - ASKED_BEFORE)];
}

function pathOf(text, before, lang) {
  const asked = new URLSearchParams({
    text: text.slice(0, ASKED_LENGTH),
    level: isKid.peek() ? "kid" : "expert",
  });
  for (const each of before) asked.append("after", each);
  if (tokenSeen.peek() !== null) asked.set("token", tokenSeen.peek());
  if (lang !== null) asked.set("lang", lang);
  return tokenPath(`/ask?${asked}`);
}

async function ask(sample, text, { title = text, lang = null } = {}) {
  if (!text) return;
  const mine = ++memory.turn;
  const before = askedBefore(sample);
  shown.value = { asked: title, reply: null, error: null, retry: null };
  try {
    const reply = await get(pathOf(text, before, lang));
    if (mine !== memory.turn) return;
    if (reply.answered) memory.before = reply.follows ? followed(before, text) : [text];
    shown.value = { asked: title, reply, error: null, retry: null };
  } catch (error) {
    const retry = () => ask(sample, text, { title, lang });
    if (mine === memory.turn) shown.value = { asked: title, reply: null, error, retry };
  }
}

function Nearest({ sample, reply }) {
  const others = reply.nearest.filter((id) => id !== reply.answered);
  if (!others.length) return null;
  return html`
    <div id="ask-nearest">
      <span class="quiet">${t("ask.nearest")}</span>
      ${others.map((id) => {
        const title = reply.titles[id];
        const open = () => ask(sample, id, { title, lang: reply.lang });
        return html`<button key=${id} type="button" data-question=${id} onClick=${open}>${title}</button>`;
      })}
    </div>
  `;
}

// A λ worth asking for: not the recorded one.
function followText({ settings }) {
  if (settings.lam === null || settings.lam === undefined) return t("ask.follow.plain");
  return t("ask.follow", { lam: settings.lam === 1 ? "0.95" : "1" });
}

export function AskBox({ sample }) {
  if (!isLive) return null;
  const { asked, reply, error, retry } = shown.value;
  const send = () => {
    ask(sample, typed.peek().trim());
    typed.value = "";
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.isComposing) send();
  };
  return html`
    <${Panel} id="ask" title=${t("ask.title")}>
      <div class="ask-line">
        <input
          id="ask-input" type="text" maxlength=${ASKED_LENGTH} aria-labelledby="ask-title"
          placeholder=${t("ask.hint")} value=${typed.value}
          onInput=${(event) => {
            typed.value = event.target.value;
          }}
          onKeyDown=${onKeyDown}
        />
        <button id="ask-send" type="button" onClick=${send}>${t("ask.send")}</button>
      </div>
      <p id="ask-follow" class="quiet">${followText(sample)}</p>
      <p id="ask-asked" class="quiet">${asked}</p>
      <div id="ask-answer" aria-live="polite">${reply ? reply.text : asked && !error ? t("ask.wait") : ""}</div>
      ${error ? html`<${Trouble} error=${error} retry=${retry} />` : null}
      ${reply ? html`<${Nearest} sample=${sample} reply=${reply} />` : null}
    </${Panel}>
  `;
}
