"""The exceptions that users see, and a remedy that several of them name."""


class TelescopeError(ValueError):
    """A mistake of the user. The message says what is wrong, what was given and what to do.

    The command line prints it as one line, without a traceback, and exits with code 2.
    """


class WorkerError(TelescopeError):
    """A worker process died, or does not answer."""


class DivergedError(TelescopeError):
    """Weights or gradients are not finite: training cannot go on from here."""


def pip_install(extra: str) -> str:
    """The command that installs an extra into this installation: a clone, or a wheel."""
    from pathlib import Path

    root = Path(__file__).parents[1]
    if not (root / "pyproject.toml").is_file():
        return f"pip install 'telescope-rl[{extra}]'"
    here = "." if Path.cwd() == root else root
    return f"pip install -e '{here}[{extra}]'"
