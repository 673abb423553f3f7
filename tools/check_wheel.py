"""Builds the wheel, installs it in a new environment outside the repository, and uses it there.

    python tools/check_wheel.py              # `make wheel`
    python tools/check_wheel.py --keep DIR   # leave the environment in DIR

Every check runs in an empty folder, so that nothing is imported from the repository. The wheel is
left in dist/. The times are printed at the end.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = "torch>=2.11,<2.14"
PIP = ("-m", "pip", "--disable-pip-version-check", "install", "--quiet")


class Check:
    """Runs commands in one folder and remembers how long each took."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds: list[tuple[str, float]] = []
        self.environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(self, what: str, *command: str | Path) -> str:
        """Runs a command and returns what it printed. A failure ends the script."""
        print(f"... {what}", flush=True)
        began = time.monotonic()
        done = subprocess.run(
            [str(part) for part in command],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.seconds.append((what, time.monotonic() - began))
        if done.returncode != 0:
            sys.exit(f"{what} failed with status {done.returncode}:\n{done.stdout}")
        return done.stdout

    def view(self, telescope: Path, run: str) -> None:
        """Starts the page, fetches it once, and stops it."""
        print("... view", flush=True)
        began = time.monotonic()
        server = subprocess.Popen(
            [str(telescope), "view", run],
            cwd=self.folder,
            env={**self.environment, "PYTHONUNBUFFERED": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            address = _address(server)
            page = _fetch(address)
        finally:
            server.terminate()
            server.wait(timeout=30)
        if "<html" not in page:
            sys.exit(f"{address} did not answer with a page")
        self.seconds.append(("view: start and one request", time.monotonic() - began))


def _address(server: subprocess.Popen[str]) -> str:
    """The address that `telescope view` prints."""
    assert server.stdout is not None
    printed = ""
    for line in server.stdout:
        printed += line
        found = re.search(r"https?://[^\s]+", line)
        if found:
            return found[0]
    sys.exit(f"telescope view printed no address:\n{printed}")


def _fetch(address: str) -> str:
    """The page at an address. The address is printed a moment before the server answers."""
    for _ in range(60):
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                return str(answer.read().decode())
        except urllib.error.URLError:
            time.sleep(0.5)
    sys.exit(f"{address} did not answer within 30 s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--keep", type=Path, help="make the environment here, and leave it")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        check(folder)


def check(folder: Path) -> None:
    """Builds, installs and uses the wheel in `folder`."""
    steps = Check(folder)
    wheel = build(steps)
    python = folder / "venv" / "bin" / "python"
    telescope = folder / "venv" / "bin" / "telescope"
    venv.create(folder / "venv", with_pip=True)
    steps.run("install torch", python, *PIP, TORCH)
    steps.run("install the wheel", python, *PIP, wheel)

    steps.run("telescope --help", telescope, "--help")
    steps.run("python -m telescope --version", python, "-m", "telescope", "--version")
    steps.run("train --smoke", telescope, "train", "--smoke")
    steps.run("plan a shipped recipe", telescope, "plan", "qwen2.5-7b-8gpu", "--shape", "7B")
    (run,) = (folder / "runs").glob("arithmetic*")
    explained = steps.run("explain", telescope, "explain", f"runs/{run.name}", "--lang", "en")
    if "✓" not in explained or "0 ✗" not in explained:
        sys.exit(f"explain did not confirm the recorded numbers:\n{explained}")
    steps.view(telescope, f"runs/{run.name}")
    steps.run(
        "py.typed and recipes are installed",
        python,
        "-c",
        "from importlib.resources import files; root = files('telescope');"
        "assert root.joinpath('py.typed').is_file();"
        "from telescope.config.recipes import shipped_recipes; assert shipped_recipes();"
        "import telescope.recipes.gsm8k",
    )
    print(f"\n{wheel.name}, {wheel.stat().st_size / 1e3:.0f} kB; seconds:")
    for what, seconds in steps.seconds:
        print(f"{seconds:8.1f}  {what}")


def build(steps: Check) -> Path:
    """Builds the wheel into dist/ and returns its path."""
    # Without this, modules that were moved since the last build would stay in the wheel.
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    target = ROOT / "dist"
    for old in target.glob("*.whl"):
        old.unlink()
    build_wheel = ("-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps")
    steps.run("build", sys.executable, *build_wheel, "--wheel-dir", target, ROOT)
    shutil.rmtree(ROOT / "build", ignore_errors=True)
    (wheel,) = target.glob("*.whl")
    return wheel


if __name__ == "__main__":
    main()
