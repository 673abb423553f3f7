"""telescope tour: PPO's numbers in eight steps, on a built-in example or on typed numbers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from telescope.commands.arguments import Parser
from telescope.commands.language import language

USAGE = "telescope tour [--numbers FILE] [--lang zh|en] [--port PORT]"


def run(arguments: list[str]) -> None:
    description = "What PPO computes for a token, in eight steps. It needs no run."
    parser = Parser(USAGE, description, own_lang=True)
    parser.add_argument(
        "--numbers",
        type=Path,
        metavar="FILE",
        help="numbers typed by hand: TOML, JSON or CSV (default: a built-in example)",
    )
    parser.add_argument(
        "--lang", choices=["zh", "en"], help="default: zh if LANG begins with zh, else en"
    )
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    options = parser.parse_args(arguments)

    from telescope.explain.example import BATCH, in_english
    from telescope.explain.numbers import read_numbers
    from telescope.viewer.server import serve
    from telescope.viewer.typed_run import write_run

    lang = options.lang or language()
    if options.numbers is not None:
        batch = read_numbers(options.numbers)
        name = options.numbers.stem
    else:
        batch = BATCH if lang == "zh" else in_english()
        name = "example"
    example = "" if options.numbers else "&example=1"
    with tempfile.TemporaryDirectory() as folder:
        shown = write_run(Path(folder) / name, batch)
        serve(shown, port=options.port, address=f"#view=tour{example}&lang={lang}")
