"""Rewards that come with the package, and what they share.

- `builtin`: their names; `terms`, `maths`, `programs`, `judge`: the rewards.
- `sandbox`, `jail`: runs untrusted programs.
- `remote`: a reward function on a server.
- `background`: a call in a thread, with a time limit.

Imports data, config and errors.
"""
