// Where answers come from: the server beside the run, or the report that this page is part of.
// Both have the same paths; a report holds some of them.

import { signal } from "../vendor/preact.js";
import { answerIn } from "./report.js";

const held = document.getElementById("data");
export const isLive = held === null;

// When the server last answered, and whether it does: the page always shows it.
export const contact = signal({ at: Date.now(), ok: true });

export class NotFound extends Error {}

async function fetched(path, options) {
  let answer;
  try {
    answer = await fetch(path, { headers: { Accept: "application/json" }, ...options });
  } catch (trouble) {
    if (trouble.name !== "AbortError") contact.value = { ...contact.peek(), ok: false };
    throw trouble;
  }
  contact.value = { at: Date.now(), ok: true };
  const body = await answer.json().catch(() => ({}));
  if (answer.ok) return body;
  const message = body.error ?? `HTTP ${answer.status}`;
  throw answer.status === 404 ? new NotFound(message) : new Error(message);
}

// A report's answers: gzip, as base64.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
  const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(plain).json();
}
let answers = null;

async function lookedUp(path) {
  answers ??= unpacked(held.textContent);
  const found = answerIn(await answers, path);
  if (found === undefined) throw new NotFound(path);
  return found;
}

// The answer of a path like "api/runs". It throws where there is none; nobody keeps failures.
export const get = (path, options = {}) => (isLive ? fetched(path, options) : lookedUp(path));
