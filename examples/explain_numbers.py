"""Explain one response from numbers alone: no model, no run, no torch.

    python examples/explain_numbers.py

Give what is known (here values, score, γ and λ); the rest is computed. The same works for files:
`telescope explain --numbers numbers.toml`.
"""

from __future__ import annotations

from telescope.explain.numbers import from_numbers
from telescope.explain.trace import num, traces
from telescope.explain.words import formula, meaning

TOKENS = ["是", "的", "！"]
NUMBERS = {
    "tokens": TOKENS,
    "values": [0.3, 0.4, 0.6],  # V(s_t): BEFORE token t
    "score": 1.0,  # on the last token
    "gamma": 1.0,
    "lam": 0.95,
}


def main() -> None:
    sample = from_numbers(NUMBERS)
    for t, token in enumerate(TOKENS):
        print(f"token {t} «{token}»")
        for trace in traces(sample, t):
            print(f"  {formula(trace, 'en', 'expert')} = {trace.substituted} = {num(trace.result)}")
            print(f"      {meaning(trace, 'en', 'expert')}")


if __name__ == "__main__":
    main()
