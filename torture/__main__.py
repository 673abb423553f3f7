"""Runs the torture suite and prints its table."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from torture import busy, damage, disks, misbehave, power, ray_faults, readers, signals
from torture.table import Row, details, markdown
from torture.workshop import Workshop, setup

KINDS = {
    "signals": (signals.torture, 30),
    "power": (power.torture, 15),
    "damage": (damage.torture, 60),
    "disks": (disks.torture, 9),
    "busy": (busy.torture, 1),
    "rewards": (misbehave.torture, 23),
    "readers": (readers.torture, 40),
    "ray": (ray_faults.torture, 7),
}
"""Kind -> its faults, and how many `make torture` does in a few minutes."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    for kind, (_, count) in KINDS.items():
        parser.add_argument(f"--{kind}", type=int, help=f"faults of this kind (default {count})")
    parser.add_argument("--minutes", type=float, help="begin no further fault after so long")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = {kind: getattr(options, kind) for kind in KINDS}
    if all(count is None for count in counts.values()):
        counts = {kind: count for kind, (_, count) in KINDS.items()}
    began = time.monotonic()
    setup()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        shop = Workshop(Path(folder), options.seed)
        kinds = [kind for kind in KINDS if counts[kind]]
        try:
            for number, kind in enumerate(kinds):
                if options.minutes is not None:  # each kind gets its share of what is left
                    left = began + 60 * options.minutes - time.monotonic()
                    shop.until = time.monotonic() + left / (len(kinds) - number)
                torture, _ = KINDS[kind]
                rows.append(torture(shop, counts[kind]))
                print(file=sys.stderr)
        finally:  # also where a later kind fails
            print(markdown(rows), flush=True)
    if not all(row.is_clean for row in rows):
        print(details(rows))
        sys.exit(1)


if __name__ == "__main__":
    main()
