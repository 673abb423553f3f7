"""Writes the tour of the built-in example as one HTML file, for the docs site.

    python tools/docs_tour.py site/assets/tour.html

The file is a report of a run made of the example's numbers. It needs neither torch nor a network.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # the docs are built without installing the package

from telescope.explain.example import in_english  # noqa: E402
from telescope.viewer.report import write_report  # noqa: E402
from telescope.viewer.typed_run import write_run  # noqa: E402


def main(out: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        print(write_report(write_run(Path(folder) / "example", in_english()), out))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
