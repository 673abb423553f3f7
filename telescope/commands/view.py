"""telescope view: the page of a run, live."""

from __future__ import annotations

import contextlib
import tempfile
import threading
from pathlib import Path

from telescope.commands.arguments import Parser
from telescope.commands.language import tell
from telescope.errors import TelescopeError

USAGE = "telescope view RUN | --numbers FILE [--host HOST] [--port PORT] [--token TOKEN]"


def run(arguments: list[str]) -> None:
    parser = Parser(USAGE, "Serve the page of a run. It follows a job that is still training.")
    parser.add_argument(
        "run", nargs="?", type=Path, metavar="RUN", help="run folder, or a folder of runs"
    )
    parser.add_argument(
        "--numbers", type=Path, metavar="FILE", help="numbers typed by hand: TOML, JSON or CSV"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="a host other than loopback needs --token"
    )
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--token", help="secret that a visitor must give")
    options = parser.parse_args(arguments)

    from telescope.explain.numbers import read_numbers
    from telescope.ledger.lines import damage_of
    from telescope.viewer.server import serve
    from telescope.viewer.typed_run import write_run

    if (options.run is None) == (options.numbers is None):
        raise TelescopeError("give a run folder, or numbers with --numbers FILE")
    with contextlib.ExitStack() as stack:
        shown = options.run
        if shown is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            batch = read_numbers(options.numbers)
            shown = write_run(Path(folder) / options.numbers.stem, batch)
        tell(*damage_of(shown))
        threading.Thread(target=_name_damage, args=(shown,), daemon=True).start()
        serve(shown, options.host, options.port, options.token)


def _name_damage(run: Path) -> None:
    """Names damaged files of the ledger. All are read, so the page does not wait for it."""
    from telescope.ledger.damage import ledger_damage

    with contextlib.suppress(TelescopeError):  # a folder that cannot be read: the page says so
        tell(*ledger_damage(run))
