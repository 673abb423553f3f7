"""The ledger: every number PPO computed for a token, as it was computed.

One Parquet file per step, one row per response.

    import telescope.ledger
    table = telescope.ledger.read("runs/arithmetic", 200)      # pyarrow; .to_pandas() for a frame
    sample = telescope.ledger.samples("runs/arithmetic", 200)[3]

`schema` says what a file holds, `reader` reads it with pyarrow and without torch, `writer` writes
it during training. May import rollout, credit, data, models, explain, batch, config,
algorithms and errors.
"""

from telescope.ledger.reader import group, read, samples, steps

__all__ = ["group", "read", "samples", "steps"]
