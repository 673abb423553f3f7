"""The torture suite: faults of every kind, and what a run is worth after them.

`python -m torture` (or `make torture`) prints a table. docs/torture.md has the last one.
"""
