"""The audit of a critic: V against what the policy itself earns from the same states.

`states` chooses states of a ledger, `statistics` has intervals and correlations, `findings` turns
outcomes into a summary, `file` writes and reads RUN/audit/step_000050.json, `words` says it.
The continuations are sampled by `telescope.run.audit`. May import ledger, explain, batch, config,
algorithms and errors; imports no torch.
"""
