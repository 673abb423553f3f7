// What fits between two posts: names of tokens are cut, numbers of neighbours take turns.

const LETTER = { usual: 9.8, tight: 6.1, number: 6.4 }; // px
const CHINESE = 1.8; // letters
const SQUEEZE = 0.72; // narrower than that is illegible
const SPECIAL = /^<\|?([^<>|]+)\|?>$/;

const isChinese = (c) => c.codePointAt(0) > 0x2e80;
const wide = (text, letter) =>
  [...text].reduce((sum, c) => sum + letter * (isChinese(c) ? CHINESE : 1), 0);

// {text, tight, length}: smaller, squeezed to `length` or cut where it does not fit.
export function boxText(given, room) {
  if (wide(given, LETTER.usual) <= room) return { text: given, tight: false, length: null };
  const most = room / SQUEEZE;
  let text = given.replace(SPECIAL, "$1");
  if (wide(text, LETTER.tight) > most) {
    const letters = [...text];
    while (letters.length > 1 && wide(`${letters.join("")}…`, LETTER.tight) > most) letters.pop();
    text = `${letters.join("")}…`;
  }
  return { text, tight: true, length: wide(text, LETTER.tight) > room ? room : null };
}

// Whether numbers side by side would touch.
export const crowd = (texts, gap) => texts.some((text) => LETTER.number * text.length > gap - 4);

// How many tokens are left out between two boxes; on a phone there may be no room for the number.
export const leftOut = (n, room) =>
  LETTER.number * (String(n).length + 1) <= room - 2 ? `⋯${n}` : "⋯";

// How far a number moves up or down so that its neighbours do not touch it.
export const turn = (crowded, n) => (crowded ? (n % 2 ? 7 : -5) : 0);

// Whether two numbers over dots at (x, y) would touch.
export const touch = (one, other) =>
  Math.abs(one.x - other.x) < (LETTER.number * (one.text.length + other.text.length)) / 2 + 2 &&
  Math.abs(one.y - other.y) < 14;

export const fits = (text, room) => wide(text, 7.6) <= room;
