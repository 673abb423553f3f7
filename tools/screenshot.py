"""Takes the pictures of the page in the docs: docs/page.png and docs/page.zh.png.

    telescope train --steps 40 --name picture
    python tools/screenshot.py runs/picture --sample 10 --token 4

Needs Playwright and Chromium, as the tests of the page do, and the fonts fonts-noto-cjk and
fonts-noto-color-emoji.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from playwright.sync_api import sync_playwright

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = {"en": DOCS / "page.png", "zh": DOCS / "page.zh.png"}
SIZE = {"width": 1280, "height": 900}


def main() -> None:
    parser = argparse.ArgumentParser(description="takes the pictures of the page in the docs")
    parser.add_argument("run", type=Path, help="run folder with a report.html")
    parser.add_argument("--step", type=int, default=40)
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--token", type=int, default=4)
    chosen = parser.parse_args()
    report = (chosen.run / "report.html").resolve().as_uri()
    where = f"step={chosen.step}&sample={chosen.sample}&token={chosen.token}"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox"],
        )
        for lang, path in PICTURES.items():
            page = browser.new_page(viewport=SIZE, color_scheme="light")
            page.goto(f"{report}#{where}&lang={lang}")
            page.wait_for_timeout(1000)
            page.screenshot(path=path)
            print(path)
        browser.close()


if __name__ == "__main__":
    main()
