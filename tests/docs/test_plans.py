"""The plans in docs/scale.md are what `telescope plan` prints.

`python -m tests.docs.test_plans` writes them anew.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex

import pytest

from telescope.commands import main
from tests import ROOT

pytestmark = pytest.mark.slow
PAGE = ROOT / "docs" / "scale.md"
SHOWN = re.compile(r"```text\n\$ telescope (plan [^\n]*)\n(.*?)```", re.DOTALL)


def printed(command: str) -> str:
    """What `telescope plan …` prints, run in the root of the repository."""
    output = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        main(shlex.split(command))
    return output.getvalue()


@pytest.mark.parametrize(
    ("command", "shown"), SHOWN.findall(PAGE.read_text("utf-8")), ids=lambda text: text[:60]
)
def test_a_shown_plan_is_what_the_command_prints(command: str, shown: str) -> None:
    assert printed(command).strip() == shown.strip()


if __name__ == "__main__":
    text = SHOWN.sub(
        lambda found: f"```text\n$ telescope {found[1]}\n{printed(found[1]).strip()}\n```",
        PAGE.read_text("utf-8"),
    )
    PAGE.write_text(text, "utf-8")
