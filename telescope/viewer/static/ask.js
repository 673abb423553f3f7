// The question box: a question in the reader's own words, answered by the server about the sample
// on the screen. What comes back enters the document through textContent alone.

import { $, el } from "./tools.js";
import { state } from "./state.js";
import { source } from "./source.js";
import { shownToken } from "./choice.js";

const ASK_TEXT = {
  zh: {
    title: "提问",
    hint: "例如：V_t 是写 token 之前还是之后的估值？",
    send: "问",
    nearest: "相近的问题",
    wait: "……",
    follow: "可以追问：λ=1 呢？ · 第 3 个 token 呢 · 举个例子 · 为什么 · 给 12 岁讲",
  },
  en: {
    title: "Ask",
    hint: "e.g. is V_t the estimate before or after the token?",
    send: "Ask",
    nearest: "Near questions",
    wait: "…",
    follow: "Follow-ups: what if λ=1 · what about token 3 · give an example · why · for a 12-year-old",
  },
};
const ASKED_LENGTH = 300;
const ASKED_BEFORE = 6; // messages that a follow-up may build on

const asked = { before: [], of: null, turn: 0 };

const askText = () => ASK_TEXT[state.lang ?? "zh"];

// Follow-ups build on messages about the same sample.
function askedBefore() {
  const of = `${state.step}/${shownToken().sample?.position}`;
  if (asked.of !== of) Object.assign(asked, { of, before: [] });
  return asked.before;
}

// The question, and the latest of its follow-ups.
function followed([question, ...later], text) {
  return [question, ...[...later, text].slice(1 - ASKED_BEFORE)];
}

async function ask(text, shown = text, lang = null) {
  const { sample, token } = shownToken();
  if (!text || !sample) return;
  const mine = ++asked.turn;
  const before = askedBefore();
  $("ask-asked").textContent = shown;
  $("ask-answer").textContent = askText().wait;
  $("ask-nearest").replaceChildren();
  const reply = await source
    .ask(state.step, sample.position, {
      text: text.slice(0, ASKED_LENGTH),
      after: before,
      token,
      level: state.kid ? "kid" : "expert",
      lang,
    })
    .catch((error) => ({ text: error.message, nearest: [], titles: {} }));
  if (mine !== asked.turn) return;
  if (reply.answered) asked.before = reply.follows ? followed(before, text) : [text];
  drawReply(reply);
}

function drawReply(reply) {
  $("ask-answer").textContent = reply.text;
  const others = reply.nearest.filter((id) => id !== reply.answered);
  const buttons = others.map((id) => {
    const title = reply.titles[id];
    const button = el("button", { type: "button", "data-question": id }, title);
    button.addEventListener("click", () => ask(id, title, reply.lang));
    return button;
  });
  const label = el("span", { class: "quiet" }, askText().nearest);
  $("ask-nearest").replaceChildren(...(buttons.length ? [label, ...buttons] : []));
}

export function drawAsk() {
  $("ask").hidden = !source.live;
  const text = askText();
  $("ask-title").textContent = text.title;
  $("ask-input").placeholder = text.hint;
  $("ask-send").textContent = text.send;
  $("ask-follow").textContent = text.follow;
}

function sendAsked() {
  const text = $("ask-input").value.trim();
  $("ask-input").value = "";
  ask(text);
}

$("ask-send").addEventListener("click", sendAsked);
$("ask-input").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.isComposing) sendAsked();
});
