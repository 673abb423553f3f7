"""Rewards, tools and servers that misbehave: refused in one line, or without effect."""

from __future__ import annotations

import os
from collections.abc import Callable

from torture.table import Row
from torture.workshop import Workshop

HARMLESS = {
    "changes its arguments": "completions.clear(); prompts.clear()",
    "changes the folder": "os.chdir('/')",
    "prints much": "print('x' * 2_000_000)",
    "closes stdout": "sys.stdout.close()",
    "waits": "time.sleep(0.3)",
    "starts a thread": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "collects no garbage": "gc.disable()",
}
"""The run is the same as without."""
HARMFUL = {
    "raises": "raise ValueError('one line\\nand another')",
    "exits": "sys.exit()",
    "exits well": "sys.exit(0)",
    "is interrupted": "raise KeyboardInterrupt",
    "recurses": "recurse = lambda: recurse(); recurse()",
    "runs out of memory": "raise MemoryError",
    "returns NaN": "result = [float('nan')] * len(completions)",
    "returns too few": "result = [1.0]",
    "returns nothing": "result = None",
    "returns text": "result = ['good'] * len(completions)",
    "returns a huge number": "result = [10.0 ** 300] * len(completions)",
    "stops iteration": "raise StopIteration",
    "ends the process": "os._exit(3)",
    "aborts": "os.abort()",
    "closes all files": "os.closerange(3, 400)",
    "raises an odd error": "raise type('Odd', (BaseException,), {'__str__': lambda self: 1})()",
}
"""The run ends, and goes on with --resume."""


def torture(shop: Workshop, count: int) -> Row:
    row = Row("misbehaving rewards")
    deeds = [*HARMLESS.items(), *HARMFUL.items()]
    while shop.goes_on(row, count):
        name, deed = deeds[row.faults % len(deeds)]
        run = shop.new_run("misbehave")
        ended = shop.train(run, before=_behave(deed))
        row.faults += 1
        what = f"a reward that {name}"
        if name != "aborts":
            row.look(ended, what)
        if ended.code == 0 and name in HARMFUL and name != "closes all files":
            row.silent.append(f"{what}: exit code 0: {ended.said[-300:]}")
        if name in HARMLESS and ended.code:
            row.not_ended(ended, what)
        shop.resume(run, row, f"after {what}")
    return row


def _behave(deed: str) -> Callable[[], None]:
    """Makes the reward do it, see REWARD in the workshop."""
    return lambda: os.environ.update(TORTURE=deed)
