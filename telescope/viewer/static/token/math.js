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
  "mrow",
  "mspace",
  "msqrt",
  "msub",
  "msubsup",
  "msup",
  "mtext",
  "munder",
  "munderover",
]);
const ATTRIBUTES = new Set(["accent", "fence", "form", "mathvariant", "separator", "stretchy"]);

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

// ---- lines: browsers do not break a formula, so it is several, side by side ----

const BETWEEN = new Set(["=", "≈", "+", "−", "-", "±"]);
const OPENING = new Set(["(", "[", "{"]);
const isSign = (tree, signs) => Array.isArray(tree) && tree[0] === "mo" && signs.has(tree[2]);
const asInfix = ([name, attributes, ...signs]) => [
  name,
  { ...attributes, form: "infix" },
  ...signs,
];
const COMMA = new Set([","]);

// The stretches of a formula, which is a row: a line may break before a sign between two terms and after a comma.
function stretchesOf(tree) {
  const out = [[]];
  tree.slice(2).forEach((child, k, children) => {
    const follows = k > 0 && !isSign(children[k - 1], OPENING) && !isSign(children[k - 1], COMMA);
    const breaks = follows && isSign(child, BETWEEN);
    if (breaks) out.push([]);
    out.at(-1).push(breaks || isSign(child, COMMA) ? asInfix(child) : child);
    if (isSign(child, COMMA)) out.push([]);
  });
  return out.filter((row) => row.length).map((row) => ["mrow", {}, ...row]);
}

// A formula. Without a tree, or where it is a single text, its plain writing stands.
export function Formula({ tree, plain }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    if (!tree) return;
    const nodes = stretchesOf(tree).map((stretch) => mathNode(["math", {}, stretch]));
    box.current.replaceChildren(
      ...nodes.flatMap((node, k) => (k ? [document.createElement("wbr"), node] : [node])),
    );
  }, [tree]);
  return tree
    ? html`<span class="formula" ref=${box} key="math" aria-label=${plain}></span>`
    : html`<span class="formula" key="plain">${plain}</span>`;
}
