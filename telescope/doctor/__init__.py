"""What is wrong with a run: findings from its metrics and its ledger. Imports no torch.

A check is a small function with a registration (`check.py`), in `checks/`, one module per family.
Its words are in words.toml, its limits in thresholds.py, what it leads to in causes.toml.
`order.py` puts causes before consequences. `watch.py` runs the checks of metrics during training.
"""

from telescope.doctor.check import CHECKS
from telescope.doctor.examine import Examination, examine, findings
from telescope.doctor.finding import Finding, Place
from telescope.doctor.watch import Watcher

__all__ = ["CHECKS", "Examination", "Finding", "Place", "Watcher", "examine", "findings"]
