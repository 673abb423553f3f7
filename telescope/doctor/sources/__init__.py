"""Where metrics come from: a run folder of ours, or another trainer's logs.

`open_source(path)` finds out which. Names of other trainers are mapped in `names.py`.
"""

from telescope.doctor.sources.opening import Source, open_source

__all__ = ["Source", "open_source"]
