"""Steps of other trainers as a run folder that `explain`, `ask`, the page and the report can open.

    import telescope
    telescope.record(step, responses=ids, mask=mask, values=values, advantages=advantages)

`rows` brings a trainer's arrays into one shape, `recorder` writes them, `readers` open the files
that other trainers write. Nothing here raises into the host trainer or runs what it reads. May
import ledger, explain, batch, config, algorithms and errors.
"""

from telescope.peers.recorder import Recorder, record
from telescope.peers.watching import watch

__all__ = ["Recorder", "record", "watch"]
