// With γ = λ = 1 and a reward at the end only, A is one number less V: what "most blamed" means then.

import { has, num } from "../core/number.js";
import { t } from "../core/text.js";
import { html } from "../vendor/preact.js";
import { settingsShown, viewOf } from "../whatif/whatif.js";

// What all tokens are paid in the end; null where A differs through more than V.
function paidAtTheEnd(sample) {
  const { columns } = viewOf(sample);
  const { gamma, lam } = settingsShown(sample);
  if (gamma !== 1 || lam !== 1 || !columns.values) return null;
  if (sample.length > sample.mask.length) return null; // the page has only its beginning
  const last = sample.mask.lastIndexOf(1);
  const rewards = columns.token_level_rewards ?? [];
  const isBefore = rewards.some((r, i) => sample.mask[i] && i < last && r !== 0);
  if (isBefore || !has(rewards[last])) return null;
  return rewards[last] + (sample.bootstrap ?? 0);
}

export function OnlyThroughV({ sample }) {
  const paid = paidAtTheEnd(sample);
  if (paid === null) return null;
  return html`<p id="only-v" class="quiet">${t("reader.only_v", { x: num(paid) })}</p>`;
}
