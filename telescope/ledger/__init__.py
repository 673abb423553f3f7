"""The ledger: every number PPO computed for a token, as it was computed. One Parquet file per step, one row per response.

    import telescope.ledger
    table = telescope.ledger.read("runs/arithmetic", 200)      # pyarrow; .to_pandas() for a frame
    sample = telescope.ledger.samples("runs/arithmetic", 200)[3]

Reading needs pyarrow and no torch.
"""

from telescope.ledger.reader import read, samples, steps

__all__ = ["read", "samples", "steps"]
