"""What hangs off the training loop, and what is done with a run afterwards.

While training: `checkpoint`, `manifest`, `metrics`, `trackers`, `timing`, `progress`,
`startup`, `warm_start` (supervised training before PPO), `dry_run` (instead of training),
`folder` (the run's folder and its lock), `summary` (what a run tells at its start and end).
Afterwards: `saved` (open a run), `evaluate`, `export`, `live` (the roles on a typed prompt).
`simulation` measures the bias and variance of GAE for one answer of `telescope explain`.

May import everything below the trainer: build, roles, ledger, data, models, config. Only the
trainer and the commands import from here.
"""
