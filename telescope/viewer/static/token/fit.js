// Text that must fit into a width: made smaller, then cut.

const LARGEST = 15; // px
const SMALLEST = 8;

let pen = null;
const widths = new Map();

// The width of a text at the largest size, as the page's letters have it.
function widthOf(text) {
  if (widths.has(text)) return widths.get(text);
  if (pen === null) {
    pen = document.createElement("canvas").getContext("2d");
    pen.font = `650 ${LARGEST}px ${getComputedStyle(document.body).fontFamily}`;
  }
  if (widths.size > 5000) widths.clear();
  const width = pen.measureText(text).width;
  widths.set(text, width);
  return width;
}

// {text, size} of a text in `room` pixels.
export function fitted(text, room) {
  const width = widthOf(text);
  if (width <= room) return { text, size: LARGEST };
  const size = Math.max(SMALLEST, (LARGEST * room) / width);
  const most = (room * LARGEST) / size + 0.5;
  const characters = [...text];
  let cut = text;
  while (widthOf(cut) > most && characters.length > 1) {
    characters.pop();
    cut = `${characters.join("")}…`;
  }
  return { text: cut, size };
}
