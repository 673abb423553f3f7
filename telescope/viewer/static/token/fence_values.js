// The fence picture's back and its upper half: posts, V on them, δ between them.

import { tone } from "../core/colour.js";
import { has, sub } from "../core/number.js";
import { isKid, t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { figureOf } from "./figure.js";

// A text of the picture.
export function said(x, y, content, { kind = "", fill, size, bold, id } = {}) {
  const style = {
    fill: fill ?? undefined,
    fontSize: size ? `${size}px` : undefined,
    fontWeight: bold === true ? 700 : bold || undefined,
  };
  return html`<text id=${id} x=${x} y=${y} class=${`mid ${kind}`} style=${style}>${content}</text>`;
}

export function Bands({ width, token, post, gap, row }) {
  const band = (y, height, kind) =>
    html`<rect x="4" y=${y} width=${width - 8} height=${height} rx="8" class=${kind} />`;
  const chosen = { x: post(token), y: row.box - 3, width: gap, height: row.height - row.box + 1 };
  return html`
    ${band(row.plot - 20, row.plotEnd - row.plot + 40, "band-states")}
    ${band(row.plotEnd + 24, row.height - row.plotEnd - 25, "band-tokens")}
    ${token === null ? null : html`<rect ...${chosen} class="chosen-gap" />`}
  `;
}

export function Captions({ weights, row, isNarrow }) {
  const caption = (y, name, small, fill) => html`
    ${said(isNarrow ? 6 : 10, y, name, { kind: "ui start", bold: 650, fill, size: isNarrow ? 10 : undefined })}
    ${isNarrow ? null : said(10, y + 13, small, { kind: "ui start quiet", size: 10.5 })}
  `;
  const quiet = { kind: "ui start quiet", size: 10.5 };
  const hasFan = weights.length > 0;
  const fanSub = weights.some((weight) => weight < 1) ? "token.fan.sub" : "token.fan.sub.full";
  return html`
    ${caption(row.state, t("token.state"), "", "var(--state)")}
    ${caption(row.box + 16, t("token.row"), t("token.row.sub"))}
    ${caption(row.plot + 36, t("token.V"), t("token.V.sub"), "var(--state)")}
    ${said(isNarrow ? 6 : 10, row.plot + 72, t(isNarrow ? "token.R.short" : "token.R"), quiet)}
    ${said(isNarrow ? 6 : 10, row.plot + 87, t("token.arrow"), quiet)}
    ${caption(row.r - 4, t("token.r"), t("token.r.sub"))}
    ${caption(row.d - 4, t("token.d"), t("token.d.sub"))}
    ${hasFan ? caption(row.fan + 40, t(isNarrow ? "token.fan.short" : "token.fan"), t(fanSub)) : null}
    ${caption(row.A - 4, t("token.A"), hasFan ? t("token.A.sub") : "")}
    ${caption(row.W - 2, t(isNarrow ? "token.W.short" : "token.W"), t("token.W.sub"))}
  `;
}

export function Posts({ sample, from, to, tokens, post, row }) {
  const one = (i) => {
    const isEnd = i === sample.length;
    const isReal = isEnd || i === to || sample.mask[i];
    const x = post(i);
    const height = row.plotEnd + 10 - row.box;
    const name = isEnd ? t("token.end") : isKid.value ? String(i) : `s${sub(i)}`;
    return html`
      <rect
        x=${x - 2.5} y=${row.box - 4} width="5" height=${height} rx="2.5"
        class=${isReal ? "post" : "post faint"}
      />
      <line x1=${x} x2=${x} y1=${row.plotEnd + 24} y2=${row.height - 2} class="post-foot" />
      ${said(x, row.state, name, { fill: "var(--state)" })}
    `;
  };
  return [...tokens, from + tokens.length].map(one);
}

// δ as the distance from V before to what the token made of it: r + γ·V after, which is V + δ.
export function Arrows(scene) {
  const { sample, tokens, v, d } = scene;
  const drawn = (i) => sample.mask[i] && has(v[i]) && has(d[i]);
  return tokens.filter(drawn).map((i) => arrow(scene, i));
}

function arrow({ v, r, d, y, post, mid, after, isChosen }, i) {
  const x = mid(i);
  const start = y(v[i]);
  const tip = y(v[i] + d[i]);
  const strong = isChosen(i);
  const leads = after(i) === i + 1 && has(r[i]);
  const discounted = leads ? y(v[i] + d[i] - r[i]) : null; // γ·V after
  const up = tip < start ? 1 : -1;
  const base = tip + up * 6;
  const fill = tone(d[i]);
  const level = strong ? "level strong" : "level";
  const shaft = html`
    <line
      x1=${x} x2=${x} y1=${start} y2=${tip + up * 3}
      stroke=${fill} stroke-width=${strong ? 3.5 : 2.2}
    />
    <path d=${`M${x - 5} ${base} L${x} ${tip} L${x + 5} ${base} Z`} fill=${fill} />
  `;
  const name = { kind: "halo start", bold: true, fill };
  return html`
    <line x1=${post(i) + 7} x2=${x + 9} y1=${start} y2=${start} class=${level} />
    ${
      leads
        ? html`<line x1=${x + 3} x2=${post(i + 1) - 7} y1=${tip} y2=${discounted} class="lead" />`
        : null
    }
    ${Math.abs(tip - start) < 1 ? null : shaft}
    ${strong && Math.abs(tip - start) >= 1 && !isKid.value ? said(x + 8, (start + tip) / 2 + 4, "δ", name) : null}
  `;
}

function brokenAxis(x, y) {
  const zigzag = (dy) => `M${x - 8} ${y - dy} l5 -5 l6 7 l5 -5`;
  return html`<path d=${`${zigzag(43)} ${zigzag(38)}`} class="break" />`;
}

// V on the posts, and beside it the critic's target R.
export function Values(scene) {
  const { sample, token, from, to, tokens, acts, after } = scene;
  const lastAct = acts.at(-1) ?? -1;
  const afterChosen = token === null ? null : (after(token) ?? sample.length);
  return [...tokens, from + tokens.length].map((i) => {
    const isEnd = i > lastAct && i === sample.length;
    const written = sample.mask[i] ? scene.v[i] : null;
    const value = isEnd ? scene.endValue : written;
    if (!has(value) || i > to) return null;
    const isNear = token !== null && (i === token || i === afterChosen);
    return onPost(scene, i, { value, isEnd, isNear });
  });
}

const diamond = (x, y) => `M${x} ${y - 5} l5 5 l-5 5 l-5 -5 Z`;

function onPost(
  { R, recorded, changed, y, post, isFar, row, isChosen, isNarrow },
  i,
  { value, isEnd, isNear },
) {
  const x = post(i);
  const at = isEnd && isFar ? row.plotEnd : y(value);
  const hasTarget = has(R[i]) && !isEnd;
  const rise = hasTarget ? y(value) - y(R[i]) : -1; // of the target above the dot
  const isUnder = rise >= 0 && rise < 24; // the dot under its target: the number below the dot …
  const isLow = isNear && at + 20 > row.plotEnd + 2; // … unless "before" or "after" stands there
  const above = isUnder ? y(R[i]) - 9 : at - 11;
  const number = figureOf("values", value);
  const symbol = isKid.value || isNarrow ? number : `V${isEnd ? "" : sub(i)}=${number}`;
  const returned = figureOf("returns", R[i]);
  const target = isKid.value ? returned : `R${sub(i)}=${returned}`;
  const was = changed && hasTarget ? recorded.returns?.[i] : null;
  const ghost = has(was) ? Math.max(row.plot - 14, Math.min(row.plotEnd + 14, y(was))) : null;
  return html`
    ${isEnd && isFar ? brokenAxis(x, at) : null}
    ${ghost === null ? null : html`<path d=${diamond(x, ghost)} class="target was" />`}
    ${hasTarget ? html`<path d=${diamond(x, y(R[i]))} class="target" />` : null}
    ${
      has(R[i]) && isChosen(i)
        ? said(x - 9, y(R[i]) + 4, target, { kind: "halo end quiet", size: 11 })
        : null
    }
    <circle cx=${x} cy=${at} r=${isNear ? 7.5 : 6} class=${isEnd ? "dot end-dot" : "dot"} />
    ${said(x, isUnder && !isLow ? at + 20 : above, isNear ? symbol : number, {
      kind: "halo",
      bold: isNear,
      fill: "var(--state)",
    })}
  `;
}

export function BeforeAndAfter({ sample, token, to, after, post, row }) {
  if (token === null || !sample.mask[token]) return null;
  const next = after(token) ?? (to === sample.length ? to : null);
  const look = { kind: "ui halo", bold: 650, size: 11, fill: "var(--pick)" };
  const word = (i, text) =>
    i === null || i > to ? null : said(post(i), row.plotEnd + 17, text, look);
  return html`${word(token, t("token.before"))}${word(next, t("token.after"))}`;
}
