// A report's answers. Those of tokens are short: their sentences and formulas stand once.
// A formula is a shape, δ⟨0⟩ = ⟨1⟩ − ⟨2⟩, and the numbers that fill it: telescope.viewer.formulas.

const NUMBER = /[0-9]+(?:\.[0-9]+)?|[₀-₉]+|[⁰¹²³⁴-⁹]+/g;

// The answer of a path; undefined where the report has none.
export function answerIn({ answers, words, shapes }, path) {
  const [, tokens, i] = /^(.*\/tokens)\/(\d+)$/.exec(path) ?? [];
  const traces = answers[tokens]?.[i];
  if (!traces) return answers[path];
  return { traces: traces.map((trace) => completed(trace, shapes)), words };
}

// The trace with its line in TeX and its formulas as trees, as the server sends it.
function completed(trace, shapes) {
  const parts = [trace.formula, trace.substituted, trace.shown].map((text) =>
    translated(text, shapes),
  );
  if (parts.includes(null)) return { ...trace, tex: null, math: null, math_numbers: null };
  const [formula, numbers, result] = parts;
  const line = [formula.tex, numbers.tex];
  if (result.tex !== numbers.tex) line.push(result.tex);
  return { ...trace, tex: line.join(" = "), math: formula.tree, math_numbers: numbers.tree };
}

function translated(text, shapes) {
  const numbers = [];
  const shape = text.replace(NUMBER, (digits, at) => {
    const plain = digits.normalize("NFKC");
    const isPower = /e[−+-]$/.test(text.slice(0, at));
    numbers.push(isPower ? String(Number(plain)) : plain);
    return `${kind(digits)}⟨${numbers.length - 1}⟩`;
  });
  const found = shapes[shape];
  if (!found) return null;
  return { tex: filled(found[0], numbers), tree: filled(found[1], numbers) };
}

function kind(digits) {
  if (/^[₀-₉]/.test(digits)) return "₍";
  return /^[⁰¹²³⁴-⁹]/.test(digits) ? "⁽" : "";
}

function filled(part, numbers) {
  if (Array.isArray(part)) return part.map((child) => filled(child, numbers));
  if (typeof part !== "string") return part;
  return part.replace(/⟨(\d+)⟩/g, (_, k) => numbers[k]);
}
