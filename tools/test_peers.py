"""Runs the tests of watching other trainers with those trainers installed.

    python tools/test_peers.py            # all
    python tools/test_peers.py trl-1.16

Each is installed without its dependencies into .peers/NAME, in front of this environment's
packages: torch and transformers are ours.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SHARED = ["datasets", "dill", "multiprocess", "xxhash", "pandas", "pytz", "accelerate", "psutil"]
PEERS = {
    "verl-0.9.1": (
        "test_verl.py",
        "verl==0.9.1 tensordict==0.10.0 pyvers hydra-core omegaconf antlr4-python3-runtime==4.9.3 "
        "codetiming torchdata TransferQueue msgspec pyzmq pylatexenc cachetools orjson fastapi "
        "annotated-doc opentelemetry-api importlib_metadata zipp cloudpickle",
    ),
    "trl-1.12": ("test_trl.py", "trl==1.12.0"),
    "trl-1.16": ("test_trl.py", "trl==1.16.0"),
    "openrlhf-0.11": ("test_openrlhf.py", "openrlhf==0.11.0 pylatexenc torchdata"),
}
"""Name -> its tests, and what is installed."""


def main() -> None:
    names = sys.argv[1:] or list(PEERS)
    failed = [name for name in names if not _passes(name)]
    if failed:
        raise SystemExit(f"failed with {', '.join(failed)}")


def _passes(name: str) -> bool:
    tests, packages = PEERS[name]
    folder = ROOT / ".peers" / name
    if not folder.exists():
        _install(folder, [*packages.split(), *SHARED])
    print(f"---- {name} ----", flush=True)
    paths = os.pathsep.join([str(ROOT), str(folder)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rs", str(ROOT / "tests" / "peers" / tests)],
        env={**os.environ, "PYTHONPATH": paths},
        cwd=ROOT,
        check=False,
    )
    return done.returncode == 0


def _install(folder: Path, packages: list[str]) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--target", str(folder), *packages], check=True)


if __name__ == "__main__":
    main()
