"""Takes the pictures of the page in the docs, from recorded runs.

    python tools/screenshots.py runs/gsm8k --answer 40,30,80 --several runs/seeds

RUN is a run with a critic. --answer is the answer that is read: step, sample, token. These have
pictures of their own, each left out without its run: --several, a folder of runs with the same
prompts; --groups, a run without a critic, and --member, its answer; --audited, a run of which
`telescope audit` audited a step, and --continued, its answer.

Needs Playwright and Chromium, as the tests of the page do, and the fonts fonts-noto-cjk and
fonts-noto-color-emoji. With Pillow the files have 256 colours, which makes them half as large.
"""

from __future__ import annotations

import argparse
import os
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
SEEN_BEFORE = "try { localStorage.setItem('telescope.tour', '1') } catch {}"
CHART = "#charts canvas"
TERMS = "#traces .trace"
ANSWER = "#prompt-steps li [data-token]"
HIDDEN = "#liveness { visibility: hidden } * { caret-color: transparent; transition: none }"
LOADING = "[...document.querySelectorAll('.late, .old')].some((node) => node.checkVisibility())"
Scores = dict[str, list[tuple[int, float]]]
COLOURS = 256
COMMON = 96
"""Of these, colours that are kept exactly."""
DESKTOP = 1280
PHONE = 390


@dataclass(frozen=True)
class Answer:
    """Which answer is read, and at which token."""

    step: int
    sample: int
    token: int | None = None

    @property
    def address(self) -> dict[str, Any]:
        found = {"step": self.step, "sample": self.sample, "token": self.token}
        return {name: value for name, value in found.items() if value is not None}


@dataclass(frozen=True)
class Shot:
    """One picture: an address, what has to be there, and which part of the page is kept."""

    name: str
    address: dict[str, Any]
    shows: str
    """Selector of an element without which the picture is not taken."""
    parts: tuple[str, ...] = ()
    """Selectors of the panels that are kept; none: the page from its top."""
    width: int = DESKTOP
    screen: int = 900
    """Height of the window: long answers get a share of it."""
    height: int = 900
    """Most pixels of the picture from top to bottom."""
    lang: str = "en"
    scheme: str = "light"


def shots_of_run(answer: Answer, prompts: Prompts) -> list[Shot]:
    """The pictures of the run that is read."""
    training = {"view": "run"}
    read = {"view": "samples", **answer.address}
    compare = {"view": "compare", "step": answer.step}
    ratio = {**compare, "compare": "distributions", "column": "ratio", "logcounts": 1}
    what_if = {**read, "lam": 0.95}
    shots = [
        Shot("dashboard", training, CHART, height=1180),
        Shot("dashboard-zh", training, CHART, height=1180, lang="zh"),
        Shot("answers", read, TERMS),
        Shot("answers-dark", read, TERMS, scheme="dark"),
        Shot("answers-zh", read, TERMS, lang="zh"),
        Shot("reader", read, TERMS, ("#reader",), screen=1400, height=1200),
        Shot("token", read, TERMS, ("#fence", "#token"), height=1400),
        Shot("token-zh", read, TERMS, ("#fence", "#token"), height=1400, lang="zh"),
        Shot("kid", {**read, "kid": 1}, TERMS, ("#fence", "#token"), height=1200),
        Shot("what-if", what_if, TERMS, ("#whatif", "#fence", "#token"), height=890),
        Shot("what-if-zh", what_if, TERMS, ("#whatif", "#fence", "#token"), height=890, lang="zh"),
        Shot("distributions", ratio, "#distribution svg", height=1000),
        Shot("calibration", {**compare, "compare": "calibration"}, "#calibration svg"),
        Shot("phone", read, TERMS, ("#reader",), width=PHONE, height=1000),
        Shot("phone-dashboard", training, CHART, width=PHONE, height=1000),
        Shot("../page", read, TERMS, ("header", "#fence"), width=1440, screen=640, height=1700),
        Shot(
            "../page.zh",
            read,
            TERMS,
            ("header", "#fence"),
            width=1440,
            screen=640,
            height=1700,
            lang="zh",
        ),
    ]
    for name, key in (("prompt", prompts.drawn), ("fixed-prompt", prompts.fixed)):
        if key:
            shots.append(Shot(name, {**compare, "prompt": key}, ANSWER, height=1100))
    return shots


def shots_of_several(folder: Path) -> list[Shot]:
    """A folder of runs: their list, and the first two side by side."""
    names = sorted(path.parent.name for path in folder.glob("*/config.toml"))
    listed = {"view": "runs", "with": ",".join(names)}
    shots = [Shot("runs", listed, "#runs tbody tr", height=1000)]
    first, other = names[:2]
    shared = shared_prompt(folder / first, folder / other)
    if shared:
        step, key = shared
        two = {"view": "compare", "run": first, "compare": "runs", "step": step, "prompt": key}
        shots.append(Shot("two-runs", {**two, "other": other}, ".side .answer, .side [data-token]"))
    return shots


def shots_of_tour(lang: str, ending: str = "") -> list[Shot]:
    """Two steps of the tour: a guess, and the truth of a later step."""
    tour = {"view": "tour", "example": 1}
    return [
        Shot(f"tour-guess{ending}", {**tour, "stop": 2}, "#tour svg", lang=lang),
        Shot(f"tour-truth{ending}", {**tour, "stop": 11}, "#tour svg", lang=lang),
    ]


def shots_of_groups(answer: Answer) -> list[Shot]:
    """The picture of a group, in a run without a critic."""
    address = {"view": "samples", **answer.address}
    return [Shot("groups", address, TERMS, ("#whatif", "#group-picture", "#token"), height=900)]


def shots_of_audit(answer: Answer) -> list[Shot]:
    """What continuations earned, beside V."""
    address = {"view": "samples", **answer.address}
    return [Shot("audit", address, TERMS, ("#fence", "#token"), height=1200)]


# ---- prompts that were answered more than once ----


@dataclass(frozen=True)
class Prompts:
    """Keys of a training prompt and of a fixed one that were answered at several steps."""

    drawn: str | None = None
    fixed: str | None = None


def prompts_of(run: Path) -> Prompts:
    """Prompts whose score rose, as far apart as possible."""
    return Prompts(drawn=_risen(_scores(run, "step")), fixed=_risen(_scores(run, "eval")))


def _risen(scores: Scores) -> str | None:
    found = []
    for key, rows in scores.items():
        (first, before), (last, after) = rows[0], rows[-1]
        if after > before:
            found.append((after - before, last - first, key))
    return max(found)[-1] if found else None


def shared_prompt(run: Path, other: Path) -> tuple[int, str] | None:
    """(step, key) of a prompt that two runs answered at one step, with scores far apart."""
    own = _scores(run, "step")
    found = []
    for key, rows in _scores(other, "step").items():
        for step, score in rows:
            gap = max((abs(score - mine) for at, mine in own.get(key, []) if at == step), default=0)
            if gap > 0:
                found.append((gap, step, key))
    return max(found)[1:] if found else None


def _scores(run: Path, kind: Literal["step", "eval"]) -> Scores:
    """prompt key -> (step, score) of its recorded answers."""
    from telescope.ledger import reader
    from telescope.viewer.rows import prompt_key

    found: Scores = {}
    for step in reader.steps(run, kind):
        table = reader.read(run, step, ["prompt", "score"], kind)
        for row in table.to_pylist():
            found.setdefault(prompt_key(row["prompt"]), []).append((step, float(row["score"])))
    return found


# ---- taking them ----


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serves a run or a folder of runs: the page's address."""
    import uvicorn

    from telescope.viewer import server
    from telescope.viewer.runs import Runs

    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    made = uvicorn.Server(
        uvicorn.Config(server.app(Runs(folder), names=set(), port=port), log_level="warning")
    )
    thread = threading.Thread(target=made.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{port}/"
    made.should_exit = True
    thread.join(timeout=10)


def take(browser: Any, url: str, shot: Shot, path: Path) -> None:
    """Opens the address, waits for its data, and writes the picture."""
    context = browser.new_context(
        viewport={"width": shot.width, "height": shot.screen},
        device_scale_factor=1,
        locale="zh-CN" if shot.lang == "zh" else "en-GB",
        color_scheme=shot.scheme,
        reduced_motion="reduce",
        bypass_csp=True,
    )
    context.add_init_script(SEEN_BEFORE)
    page = context.new_page()
    page.goto(f"{url}#{urlencode({**shot.address, 'lang': shot.lang})}")
    page.add_style_tag(content=HIDDEN)
    page.locator(shot.shows).first.wait_for(timeout=60_000)
    page.wait_for_load_state("networkidle")
    _wait_while_loading(page)
    page.screenshot(path=path, clip=_clip(page, shot), full_page=True)
    context.close()
    _reduce(path)
    print(f"{path}  {path.stat().st_size / 1024:.0f} KiB", flush=True)


def _wait_while_loading(page: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    page.wait_for_timeout(700)
    while page.evaluate(LOADING) and time.monotonic() < deadline:
        page.wait_for_timeout(100)
    page.wait_for_timeout(300)


def _clip(page: Any, shot: Shot) -> dict[str, float]:
    """The panels that are kept, or the screen; never below the end of the page."""
    end = page.evaluate("document.getElementById('app').getBoundingClientRect().bottom + scrollY")
    if not shot.parts:
        return {"x": 0, "y": 0, "width": shot.width, "height": min(shot.height, end)}
    boxes = [page.locator(part).first.bounding_box() for part in shot.parts]
    top = max(0, min(box["y"] for box in boxes) - 8)
    bottom = max(box["y"] + box["height"] for box in boxes) + 8
    left = max(0, min(box["x"] for box in boxes) - 8)
    right = min(shot.width, max(box["x"] + box["width"] for box in boxes) + 8)
    return {"x": left, "y": top, "width": right - left, "height": min(shot.height, bottom - top)}


def _reduce(path: Path) -> None:
    """Fewer colours, if Pillow is there: the commonest as they are, the others by their spread."""
    try:
        from PIL import Image
    except ImportError:
        return
    with Image.open(path) as taken:
        picture = taken.convert("RGB")
    counted = sorted(picture.getcolors(picture.width * picture.height), reverse=True)
    exact = [colour for _, colour in counted[:COMMON]]
    spread = picture.quantize(COLOURS - COMMON, method=Image.Quantize.MAXCOVERAGE).getpalette()
    palette = exact + _triples(spread)
    nearest = {
        colour: min(range(len(palette)), key=lambda k: _distance(colour, palette[k]))
        for _, colour in counted
    }
    pixels = bytes(nearest[colour] for colour in _triples(picture.tobytes()))
    reduced = Image.frombytes("P", picture.size, pixels)
    reduced.putpalette([value for colour in palette for value in colour])
    reduced.save(path, optimize=True)


def _triples(numbers: Sequence[int]) -> list[tuple[int, ...]]:
    return list(zip(*[iter(numbers)] * 3, strict=True))


def _distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1]) + abs(one[2] - other[2])


def _answer(text: str) -> Answer:
    return Answer(*(int(number) for number in text.split(",")))


def main() -> None:
    parser = argparse.ArgumentParser(description="takes the pictures of the page in the docs")
    parser.add_argument("run", type=Path, help="run folder with a critic")
    parser.add_argument("--answer", required=True, type=_answer, metavar="STEP,SAMPLE[,TOKEN]")
    parser.add_argument("--several", type=Path, help="folder of runs with the same prompts")
    parser.add_argument("--groups", type=Path, help="run folder without a critic")
    parser.add_argument("--member", default="1,0,0", type=_answer, metavar="STEP,SAMPLE[,TOKEN]")
    parser.add_argument("--audited", type=Path, help="run folder with an audited step")
    parser.add_argument("--continued", type=_answer, metavar="STEP,SAMPLE[,TOKEN]")
    parser.add_argument("--out", type=Path, default=Path("docs/page"))
    parser.add_argument("--only", default="", help="names of pictures, with commas")
    chosen = parser.parse_args()
    jobs = [
        (chosen.run, shots_of_run(chosen.answer, prompts_of(chosen.run))),
        (chosen.run, [*shots_of_tour("en"), *shots_of_tour("zh", "-zh")]),
    ]
    if chosen.several:
        jobs.append((chosen.several, shots_of_several(chosen.several)))
    if chosen.groups:
        jobs.append((chosen.groups, shots_of_groups(chosen.member)))
    if chosen.audited and chosen.continued:
        jobs.append((chosen.audited, shots_of_audit(chosen.continued)))
    wanted = {name for name in chosen.only.split(",") if name}
    chosen.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for place, shots in jobs:
            with served(place) as url:
                for shot in shots:
                    if not wanted or shot.name in wanted:
                        take(browser, url, shot, chosen.out / f"{shot.name}.png")
        browser.close()


if __name__ == "__main__":
    main()
