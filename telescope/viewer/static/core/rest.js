// Values that change while something is dragged or typed, taken over once they rest.

import { effect, signal } from "../vendor/preact.js";

// `wanted` as it was when it last stayed the same for `ms`. `isInstant(value, before)`: those that
// need not wait.
export function rested(wanted, ms, isInstant) {
  const found = signal(null);
  let timer = 0;
  effect(() => {
    const value = wanted.value;
    const take = () => {
      found.value = value;
    };
    clearTimeout(timer);
    if (isInstant(value, found.peek())) take();
    else timer = setTimeout(take, ms);
  });
  return found;
}
