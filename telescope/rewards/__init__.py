"""Rewards that come with the package, and what they share.

- `remote`: a reward function on a server.
- `background`: a call in a thread, with a time limit.

Imports data, config and errors.
"""
