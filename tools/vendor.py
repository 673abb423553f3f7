"""Writes the libraries of the page into telescope/viewer/static/vendor.

    python tools/vendor.py        # needs npm; only for a new version of a library

The page has no build step: what this writes is committed, each library as one ES module.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

VENDOR = Path(__file__).parent.parent / "telescope" / "viewer" / "static" / "vendor"
PACKAGES = {
    "preact": "11.2.0",
    "htm": "3.1.1",
    "@preact/signals": "2.11.4",
    "@preact/signals-core": "1.14.5",
    "uplot": "1.6.32",
}
ESBUILD = "0.28.2"
ENTRIES = {
    "preact.js": """
        import { h } from "preact";
        import htm from "htm";
        export const html = htm.bind(h);
        export { Component, Fragment, h, render } from "preact";
        export {
          useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
        } from "preact/hooks";
        export { batch, computed, effect, signal, untracked } from "@preact/signals";
        export { useComputed, useSignal, useSignalEffect } from "@preact/signals";
    """,
    "uplot.js": """
        import uPlot from "uplot";
        export { uPlot };
    """,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _install(folder)
        for target, source in ENTRIES.items():
            _bundle(folder, target, source)
        shutil.copy(folder / "node_modules/uplot/dist/uPlot.min.css", VENDOR / "uplot.css")
        (VENDOR / "NOTICE").write_text(_notice(folder), "utf-8")


def _install(folder: Path) -> None:
    (folder / "package.json").write_text(json.dumps({"private": True}), "utf-8")
    wanted = [f"{package}@{version}" for package, version in PACKAGES.items()]
    subprocess.run(["npm", "install", *wanted, f"esbuild@{ESBUILD}"], cwd=folder, check=True)


def _bundle(folder: Path, target: str, source: str) -> None:
    entry = folder / target
    entry.write_text(source, "utf-8")
    options = ["--bundle", "--format=esm", "--minify", "--charset=utf8", "--legal-comments=none"]
    subprocess.run(
        ["node_modules/.bin/esbuild", str(entry), *options, f"--outfile={VENDOR / target}"],
        cwd=folder,
        check=True,
    )


def _notice(folder: Path) -> str:
    """Name, version and licence of every library."""
    parts = ["Libraries of the page, made by tools/vendor.py.\n"]
    for package, version in PACKAGES.items():
        root = folder / "node_modules" / package
        licence = next(path for path in sorted(root.iterdir()) if path.name.startswith("LICENSE"))
        parts.append(f"{package} {version}\n\n{licence.read_text('utf-8').strip()}\n")
    return "\n---\n\n".join(parts)


if __name__ == "__main__":
    main()
