"""V along right and wrong answers of one step.

    python benchmarks/values.py RUN [--step 30]

RUN was trained with --ledger.samples all. Takes the answers of the commonest length and prints the
mean V before each token, of those with full marks and of the others, as the table of
docs/algorithms.md.
"""

import argparse
from collections import Counter
from pathlib import Path

from telescope import ledger


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--step", type=int, default=30)
    given = parser.parse_args()
    samples = ledger.samples(given.run, given.step)
    length = Counter(map(len, samples)).most_common(1)[0][0]
    samples = [sample for sample in samples if len(sample) == length]
    best = max(sample.score for sample in samples)
    right, wrong = ([s for s in samples if (s.score == best) == full] for full in (True, False))
    print(
        f"| answers | {' | '.join(f'V before {t}' for t in range(length))} | paid "
        f"|\n|---|{'---|' * (length + 1)}"
    )
    for name, group in ((f"right ({len(right)})", right), (f"wrong ({len(wrong)})", wrong)):
        rows = [
            *([s.columns["values"][t] for s in group] for t in range(length)),
            [s.score for s in group],
        ]
        print(f"| {name} | {' | '.join(f'{sum(row) / max(len(row), 1):.2f}' for row in rows)} |")
    rises = [
        sum(a < b for a, b in zip(s.columns["values"], s.columns["values"][1:], strict=False))
        for s in samples
    ]
    steady = sum(n == length - 1 for n in rises)
    print(f"\n{steady} of {len(samples)} answers have a V that rises at every token.")


if __name__ == "__main__":
    main()
