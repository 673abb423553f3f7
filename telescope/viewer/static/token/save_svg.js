// A picture of the page as an SVG file: the style sheet's rules go into it as attributes.

const STYLES = [
  "fill",
  "fill-opacity",
  "stroke",
  "stroke-width",
  "stroke-opacity",
  "stroke-dasharray",
  "stroke-linecap",
  "stroke-linejoin",
  "paint-order",
  "font-family",
  "font-size",
  "font-weight",
  "text-anchor",
];

function standalone(svg) {
  const copy = svg.cloneNode(true);
  const before = [svg, ...svg.querySelectorAll("*")];
  const after = [copy, ...copy.querySelectorAll("*")];
  before.forEach((node, k) => {
    const computed = getComputedStyle(node);
    after[k].removeAttribute("style");
    for (const name of STYLES) after[k].setAttribute(name, computed.getPropertyValue(name));
  });
  for (const hit of copy.querySelectorAll(".hit")) hit.remove();
  const { width, height } = svg.viewBox.baseVal;
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", width);
  paper.setAttribute("height", height);
  const panel = getComputedStyle(document.documentElement).getPropertyValue("--panel");
  paper.setAttribute("fill", panel.trim());
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

export function saveSvg(svg, name) {
  const file = new Blob([standalone(svg)], { type: "image/svg+xml" });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
