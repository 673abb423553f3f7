// The answer as running text, every token a span that the painter colours.

import { t } from "../core/text.js";
import { groups, hex } from "../core/token_text.js";
import { tokenPanel } from "../token/chosen.js";
import { html, useMemo, useRef } from "../vendor/preact.js";
import { cutByKind, kindsOf } from "./markup.js";
import { Painter } from "./painter.js";
import { endMark, running } from "./running_text.js";

// ---- what stands there ----

// A character that is split over several tokens: the character, with a cell for every token.
function SplitCharacter({ sample, group }) {
  const tokens = sample.token_bytes.slice(group.from, group.to);
  return html`
    <span class="split">
      <span>${running(group.text)}</span>
      <span>
        ${tokens.map(
          (bytes, k) => html`<span class="tok" data-token=${group.from + k}>${hex(bytes)}</span>`,
        )}
      </span>
    </span>
  `;
}

function Token({ sample, group, kinds, start }) {
  if (group.to - group.from > 1) return html`<${SplitCharacter} sample=${sample} group=${group} />`;
  const i = group.from;
  const mark = endMark(sample, group);
  if (mark !== null) {
    return html`<span class="tok eos" data-token=${i} title=${t("reader.eos")}>${running(mark)}</span>`;
  }
  if (group.text === "") return html`<span class="tok unseen" data-token=${i}>∅</span>`;
  const pieces = cutByKind(group.text, kinds, start);
  const plain = pieces.length === 1 && pieces[0].kind === "";
  return html`
    <span class="tok" data-token=${i}>
      ${
        plain
          ? running(group.text, { breaks: true })
          : pieces.map(({ kind, text }) =>
              kind
                ? html`<span class=${kind}>${running(text, { breaks: true })}</span>`
                : running(text, { breaks: true }),
            )
      }
    </span>
  `;
}

// Stretches of the answer by who wrote them: [{isTool, groups: [{group, start}]}].
function stretchesOf(sample) {
  const out = [];
  let start = 0;
  for (const group of groups(sample)) {
    const isTool = !sample.mask[group.from];
    if (out.at(-1)?.isTool !== isTool) out.push({ isTool, groups: [] });
    out.at(-1).groups.push({ group, start });
    start += group.text.length;
  }
  return out;
}

function Stretch({ sample, stretch, kinds }) {
  const tokens = stretch.groups.map(
    ({ group, start }) =>
      html`<${Token} key=${group.from} ...${{ sample, group, kinds, start }} />`,
  );
  if (!stretch.isTool) return tokens;
  const n = stretch.groups.reduce((sum, { group }) => sum + group.to - group.from, 0);
  return html`
    <div class="tool-output">
      <span class="role">🔧 ${t("reader.tool", { n })}</span>
      <div>${tokens}</div>
    </div>
  `;
}

function Ending({ sample }) {
  const shown = sample.token_ids.length;
  if (shown < sample.length) {
    const n = sample.length;
    return html`<div class="cut-off" data-cut="page">${t("reader.shown", { shown, n })}</div>`;
  }
  if (!sample.truncated) return null;
  return html`<div class="cut-off" data-cut="run">${t("reader.truncated", { n: sample.length })}</div>`;
}

export function Answer({ sample }) {
  const box = useRef(null);
  const content = useMemo(() => {
    const text = groups(sample).map((group) => group.text);
    const kinds = kindsOf(text.join(""));
    return stretchesOf(sample).map(
      (stretch) => html`<${Stretch} sample=${sample} stretch=${stretch} kinds=${kinds} />`,
    );
  }, [sample]);
  return html`
    <div
      id="answer" class="answer" ref=${box} role="group" dir="auto"
      aria-label=${t("reader.answer")} ...${tokenPanel}
    >
      <div key=${`${sample.step}/${sample.position}`}>
        ${content}
        <${Ending} sample=${sample} />
        <${Painter} sample=${sample} box=${box} />
      </div>
    </div>
  `;
}
