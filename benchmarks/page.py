"""How fast the page is with a large run: prints, asserts nothing.

    python -m benchmarks.page                       # 500 steps × 64 samples × 300 tokens
    python -m benchmarks.page --steps 20 --tokens 2000

Writes a run (or takes the one in --run), serves it, and opens it in Chromium:

- first paint, and until the charts and the first answer are there;
- a step change: from the key press until the new step's answer is on the screen;
- the next sample: the same;
- λ dragged over 120 frames with all samples of the step loaded: frames per second, and CPU time of
  the page's main thread per frame. The second one hardly depends on what else the machine does;
- memory: the page's JavaScript heap and the server's resident set.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.viewer.big import big_run

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--enable-precise-memory-info"]
CHANGES = 10
"""Step and sample changes that are timed."""
WARM_UP = 60
"""Frames of a drag before those that count: the browser compiles what runs often."""
FRAMES = 120
SHOWN = "document.querySelector('#reader')?.innerText ?? ''"
DRAG = """async (count) => {
  const slider = document.querySelector("#lam");
  if (!slider) return null;
  const frames = [];
  let before = performance.now();
  for (let k = 0; k < count; k++) {
    slider.value = String(Math.abs(Math.sin(k / 30)));
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
    const now = performance.now();
    frames.push(now - before);
    before = now;
  }
  return frames;
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="a run folder (default: a new one)")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run
        if run is None:
            run = big_run(Path(folder) / "big", options.steps, options.samples, options.tokens)
            print(f"{options.steps} steps × {options.samples} samples × {options.tokens} tokens")
        line("load", " ".join(f"{x:.1f}" for x in os.getloadavg()) + f" on {os.cpu_count()} cores")
        with served(run) as (address, server):
            measure(address, server)


@contextmanager
def served(run: Path) -> Iterator[tuple[str, int]]:
    """The page's address, and the id of the process that serves it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "telescope", "view", str(run), "--port", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        server.stdout.readline()  # the address
        time.sleep(1.0)
        yield f"http://127.0.0.1:{port}/", server.pid
    finally:
        server.terminate()
        server.wait()


def measure(address: str, server: int) -> None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, locale="en-US")
        page = context.new_page()
        line("first paint, charts", f"{_first_paint(page, f'{address}#view=run', 'canvas')}")
        page = context.new_page()
        opened = f"{address}#view=samples"
        line(
            "first paint, answers",
            f"{_first_paint(page, opened, '#answer .tok')}",
        )
        line("step change", _timed(page, lambda: page.keyboard.press("Enter"), "#later"))
        line("next sample", _timed(page, lambda: page.keyboard.press("ArrowDown"), "#table-box"))
        _print_drag(browser, page)
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        line("memory of the page", f"{heap:.0f} MiB of JavaScript heap")
        line("memory of the server", f"{_resident(server):.0f} MiB resident")
        browser.close()


def line(name: str, value: str) -> None:
    print(f"{name:22} {value}", flush=True)


def _first_paint(page: Any, address: str, wanted: str) -> str:
    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector(wanted, state="attached")
    there = time.perf_counter() - began
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    return f"{paint or 0:.0f} ms; complete after {1000 * there:.0f} ms"


def _timed(page: Any, act: Callable[[], Any], focus: str) -> str:
    """Milliseconds from a key press until the reader shows another answer."""
    times = []
    for _ in range(CHANGES):
        page.focus(focus)
        before = page.evaluate(SHOWN)
        began = time.perf_counter()
        act()
        while page.evaluate(SHOWN) == before:
            if time.perf_counter() - began > 20:
                return "the reader did not change"
        times.append(1000 * (time.perf_counter() - began))
    return f"{statistics.median(times):.0f} ms (median of {CHANGES}; slowest {max(times):.0f})"


def _print_drag(browser: Any, page: Any) -> None:
    page.wait_for_timeout(1_000)
    if page.evaluate(DRAG, WARM_UP) is None:
        line("λ drag", "there is no #lam on the page")
        return
    before = _main_threads(browser)
    frames = page.evaluate(DRAG, FRAMES)
    after = _main_threads(browser)
    busiest = max(after[process] - before.get(process, 0.0) for process in after)  # the page's
    cpu = 1000 * busiest / FRAMES
    rate = 1000 * FRAMES / sum(frames)
    slow = sorted(frames)[int(0.95 * FRAMES)]
    line("λ drag", f"{rate:.0f} frames/s, {cpu:.1f} ms CPU per frame, 95 % under {slow:.0f} ms")


def _main_threads(browser: Any) -> dict[int, float]:
    """CPU seconds of every renderer's main thread, by process (Linux)."""
    session = browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    renderers = [process["id"] for process in found if process["type"] == "renderer"]
    return {process: _cpu_seconds(process) for process in renderers}


def _cpu_seconds(process: int) -> float:
    nanoseconds = Path(f"/proc/{process}/task/{process}/schedstat").read_text().split()[0]
    return int(nanoseconds) / 1e9


def _resident(process: int) -> float:
    """MiB of the process (Linux)."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    main()
