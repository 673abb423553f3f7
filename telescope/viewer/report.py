"""One HTML file that holds a run's page. It opens from disk and asks no network."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.viewer.payload import dumps, page_sample, page_traces, page_whatif
from telescope.viewer.run_data import RunData
from telescope.viewer.whatif import choices, grid, recompute

_log = logging.getLogger("telescope")

MAX_BYTES = 2_800_000
MAX_STEPS = 5
SAMPLES = 8
TOKENS = 600
TRACED = 64
"""Tokens of one sample that come with their arithmetic."""
WORDS_BYTES = 60_000
"""Room that is kept for the sentences of the traces."""
SCRIPTS = (
    "texts.js",
    "tools.js",
    "state.js",
    "source.js",
    "whatif.js",
    "choice.js",
    "list.js",
    "fence.js",
    "table.js",
    "traces.js",
    "curves.js",
    "paths.js",
    "controls.js",
    "ask.js",
    "page.js",
)
"""The page's modules, each after those that it imports."""


def write_report(run: Path, out: Path) -> Path:
    """Writes the page of `run` to `out` in one move, and returns `out`.

    The page holds the last recorded step and a few before it.
    """
    html = _html(_data(RunData(Path(run))))
    out = Path(out)
    temporary = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
        with os.fdopen(handle, "wb") as file:
            file.write(html)
        os.chmod(temporary, 0o644)
        os.replace(temporary, out)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise TelescopeError(
            f"cannot write the report {out}: {error.strerror}; choose another path with -o"
        ) from error
    return out


# ---- what goes in ----


def _data(run: RunData) -> dict[str, Any]:
    """The newest step first, with half of the room; the others share the rest."""
    info = run.info()
    recorded = run.steps()
    chosen = _chosen_steps(recorded)
    room = MAX_BYTES - sum(map(len, _assets())) - len(dumps(info)) - WORDS_BYTES
    steps: dict[int, Any] = {}
    words: dict[str, Any] = {}
    for done, step in enumerate(chosen):
        left = len(chosen) - done
        share = room // 2 if done == 0 and left > 1 else room // left
        try:
            steps[step], used = _Step(run, step, share, words).pack()
        except TelescopeError as error:  # a damaged file costs this step, not the report
            _log.warning("left out of the report: %s", error)
        else:
            room -= used
    shown = info | {"recorded": len(recorded), "steps": sorted(steps)}
    return {"run": shown, "steps": steps, "words": words}


class _Step:
    """Packs one step into `room` bytes: samples into the first half, then what-ifs, then traces."""

    def __init__(self, run: RunData, step: int, room: int, words: dict[str, Any]) -> None:
        self.run = run
        self.step = step
        self.room = room
        self.words = words
        self.index = run.index(step)
        self.used = 0

    def pack(self) -> tuple[dict[str, Any], int]:
        """The step's data, and the bytes it takes."""
        rows = self._samples()
        data = {
            "count": len(self.index),
            "samples": rows,
            "estimators": self.run.estimators(self.step),
            "paths": self.run.paths(self.step),
            "whatif": self._whatif(rows),
        }
        for done, row in enumerate(rows):
            left = len(rows) - done
            self._add_traces(row, until=self.used + (self.room - self.used) // left)
        return data, self.used

    def _take(self, value: Any, until: int) -> bool:
        """Counts the value's bytes if they end before `until`."""
        size = len(_escaped(dumps(value)))
        if self.used + size > until:
            return False
        self.used += size
        return True

    def _samples(self) -> list[dict[str, Any]]:
        rows = []
        for position in _chosen_samples(self.index):
            row = page_sample(self.run.sample(self.step, position), max_tokens=TOKENS)
            row |= {"position": position, "index_row": self.index[position], "traces": {}}
            if self._take(row, until=self.room // 2):
                rows.append(row)
        return rows

    def _whatif(self, rows: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Every what-if of a small grid; None where they do not fit into half of what is left."""
        if not rows:
            return None
        positions = [row["position"] for row in rows]
        samples = [self.run.sample(self.step, position) for position in positions]
        until = self.used + (self.room - self.used) // 2
        before = self.used
        results = {}
        for key, tried in _tried(samples):
            results[key] = [
                page_whatif(position, sample, max_tokens=TOKENS, digits=5)
                for position, sample in zip(positions, tried, strict=True)
            ]
            if not self._take(results[key], until):
                self.used = before
                return None
        gammas, lams = grid(samples[0].settings)
        return {"gammas": gammas, "lams": lams, "results": results}

    def _add_traces(self, row: dict[str, Any], until: int) -> None:
        """The arithmetic of a sample's tokens, those with the largest |A| first."""
        sample = self.run.sample(self.step, row["position"])
        advantages = sample.columns.get("advantages") or [0.0] * len(sample)
        tokens = sorted(range(len(row["token_ids"])), key=lambda t: -abs(advantages[t]))
        for t in tokens[:TRACED]:
            found = page_traces(sample, t, self.words)
            if not self._take(found, until):
                break
            row["traces"][t] = found


def _tried(samples: list[Sample]) -> Iterator[tuple[str, list[Sample]]]:
    for key, whatif in choices(samples[0].settings):
        yield key, recompute(samples, whatif)


def _chosen_steps(steps: list[int]) -> list[int]:
    """The last step, the first, and some between: newest first."""
    if len(steps) <= MAX_STEPS:
        return steps[::-1]
    stride = (len(steps) - 1) / (MAX_STEPS - 1)
    return [steps[round(i * stride)] for i in reversed(range(MAX_STEPS))]


def _chosen_samples(index: list[dict[str, Any]]) -> list[int]:
    """Samples of whole prompts, so that they can be compared.

    Half of the prompts are those with the largest |A|, the others come as recorded.
    """
    by_prompt: dict[str, list[int]] = {}
    for position, row in enumerate(index):
        by_prompt.setdefault(row["prompt_key"], []).append(position)
    recorded = [group[:4] for group in by_prompt.values()]
    striking = sorted(recorded, key=lambda group: -max(index[i]["max_abs_a"] or 0.0 for i in group))
    chosen: list[int] = []
    for groups, most in ((striking, SAMPLES // 2), (recorded, SAMPLES)):
        for group in groups:
            if group[0] not in chosen and len(chosen) < most:
                chosen += group
    return sorted(chosen)


# ---- the file ----


def _escaped(json: bytes) -> bytes:
    """JSON that can neither end the script element it stands in nor open a comment there."""
    for character in (b"<", b">", b"&"):
        json = json.replace(character, b"\\u%04x" % ord(character))
    return json


_IMPORT = re.compile(rb"^import [^;]*;\n", re.MULTILINE)


def _assets() -> tuple[bytes, bytes, bytes]:
    """HTML, style and script.

    A file on disk cannot import another, so the modules become one, in the order of their imports.
    """
    static = files("telescope.viewer") / "static"
    html = static.joinpath("index.html").read_bytes()
    css = static.joinpath("page.css").read_bytes()
    modules = [_IMPORT.sub(b"", static.joinpath(name).read_bytes()) for name in SCRIPTS]
    script = re.sub(rb"^export ", b"", b"".join(modules), flags=re.MULTILINE)
    return html, css, script


def _html(data: dict[str, Any]) -> bytes:
    html, css, script = _assets()
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(css)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    inlined = _element(b'script type="application/json" id="data"', _escaped(dumps(data)))
    parts = {
        b"<!--policy-->": meta.encode(),
        b'<link rel="stylesheet" href="page.css">': _element(b"style", css),
        b"<!--data-->": inlined,
        b'<script type="module" src="page.js"></script>': _element(b'script type="module"', script),
    }
    # In the order of the file, each mark searched after the last one: the data may hold anything.
    head = b""
    for mark, part in parts.items():
        before, found, html = html.partition(mark)
        assert found, f"index.html has no {mark!r}"
        head += before + part
    return head + html


def _element(tag: bytes, content: bytes) -> bytes:
    name = tag.split()[0]
    return b"<" + tag + b">" + content + b"</" + name + b">"


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
