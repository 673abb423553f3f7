"""Where metrics come from: a run folder of ours, or another trainer's logs.

`opening.open_source(path)` finds out which. Names of other trainers are mapped in `names.py`.
"""
