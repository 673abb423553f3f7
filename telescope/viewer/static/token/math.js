// Formulas: a tree of MathML from Python becomes elements of an allow-list, text stays text.

import { html, useLayoutEffect, useRef } from "../vendor/preact.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const ELEMENTS = new Set([
  "math",
  "mfrac",
  "mi",
  "mn",
  "mo",
  "mover",
  "mpadded",
  "mphantom",
  "mroot",
  "mrow",
  "mspace",
  "msqrt",
  "mstyle",
  "msub",
  "msubsup",
  "msup",
  "mtable",
  "mtd",
  "mtext",
  "mtr",
  "munder",
  "munderover",
]);
const ATTRIBUTES = new Set([
  "accent",
  "display",
  "displaystyle",
  "fence",
  "form",
  "lspace",
  "mathvariant",
  "rspace",
  "separator",
  "stretchy",
  "width",
]);

// ["mrow", {…}, child, …] or a text. What is not on the lists is left out.
export function mathNode(tree) {
  if (!Array.isArray(tree)) return document.createTextNode(String(tree));
  const [name, attributes, ...children] = tree;
  if (!ELEMENTS.has(name)) return document.createTextNode("");
  const node = document.createElementNS(MATHML, name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (ATTRIBUTES.has(key)) node.setAttribute(key, String(value));
  }
  node.append(...children.map(mathNode));
  return node;
}

// A formula. Without a tree, or where it is a single text, its plain writing stands.
export function Formula({ tree, plain }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    if (!tree) return;
    const isWhole = tree[0] === "math";
    box.current.replaceChildren(mathNode(isWhole ? tree : ["math", {}, tree]));
  }, [tree]);
  return tree
    ? html`<span class="formula" ref=${box} key="math" aria-label=${plain}></span>`
    : html`<span class="formula" key="plain">${plain}</span>`;
}
