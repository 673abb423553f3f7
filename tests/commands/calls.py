"""Calls of the command line: what they print if refused, if successful, and if asked for help."""

from __future__ import annotations

import pytest

from telescope import commands as cli

Capture = pytest.CaptureFixture[str]


def refusal(capsys: Capture, *arguments: str) -> str:
    """What the user reads on stderr when the command is refused with exit code 2: one line."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    printed = capsys.readouterr()
    assert end.value.code == 2
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("telescope: ")
    return printed.err


def printed(capsys: Capture, *arguments: str) -> str:
    """What a command that succeeds prints."""
    capsys.readouterr()
    cli.main(list(arguments))
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def help_text(capsys: Capture, *arguments: str) -> str:
    """What a request for help prints."""
    with pytest.raises(SystemExit) as end:
        cli.main(list(arguments))
    assert end.value.code == 0
    return capsys.readouterr().out
