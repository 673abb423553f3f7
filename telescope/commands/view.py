"""telescope view: the page of a run, live."""

from __future__ import annotations

from pathlib import Path

from telescope.commands.arguments import Parser

USAGE = "telescope view RUN [--host HOST] [--port PORT] [--token TOKEN]"


def run(arguments: list[str]) -> None:
    parser = Parser(USAGE, "Serve the page of a run. It follows a job that is still training.")
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--host", default="127.0.0.1", help="a host other than loopback needs --token"
    )
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--token", help="secret that a visitor must give")
    options = parser.parse_args(arguments)

    from telescope.viewer.server import serve

    serve(options.run, options.host, options.port, options.token)
