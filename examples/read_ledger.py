"""Read a run's ledger with pyarrow: which tokens got the most credit?

    python examples/read_ledger.py runs/arithmetic-seed0

The ledger holds one Parquet file per step and one row per response, with a list per token.
Reading it needs pyarrow and no torch.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

from telescope import ledger


def tokens_of(run: str, step: int) -> pa.Table:
    """One row per token that the policy wrote: sample, prompt, token, advantage."""
    table = ledger.read(run, step)
    rows = pc.list_parent_indices(table["advantages"])
    flat = pa.table(
        {
            "sample": table["sample"].take(rows),
            "prompt": table["prompt"].take(rows),
            "token": pc.list_flatten(table["token_bytes"]),
            "advantage": pc.list_flatten(table["advantages"]),
            "mask": pc.list_flatten(table["response_mask"]),
        }
    )
    return flat.filter(pc.equal(flat["mask"], 1))


def main(run: str) -> None:
    step = ledger.steps(run)[-1]
    flat = tokens_of(run, step)
    size = pc.abs(flat["advantage"])
    largest = pc.sort_indices(size, sort_keys=[("", "descending")])[:10]
    print(f"step {step}: the ten tokens with the largest |A| of {flat.num_rows}")
    for row in flat.take(largest).to_pylist():
        token = row["token"].decode("utf-8", "replace")
        print(f"{row['advantage']:+.3f}  {token:6}  sample {row['sample']}: {row['prompt']}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/read_ledger.py RUN")
    main(sys.argv[1])
