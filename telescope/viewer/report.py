"""One HTML file that holds a run's page: opens from disk, asks no network, runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.viewer.payload import RunData, dumps, page_sample, page_traces

_log = logging.getLogger("telescope")

MAX_BYTES = 2_800_000
MAX_STEPS = 5
SAMPLES = 8
TOKENS = 600
SCRIPTS = ("texts.js", "tools.js", "page.js")
TRACED = 64
"""Tokens of one sample that come with their arithmetic."""


def write_report(run: Path, out: Path) -> Path:
    """Writes the page of `run` to `out` in one move, and returns `out`: the last recorded step and a few before it."""
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


def _data(run: RunData) -> dict[str, Any]:
    """The newest step first, with half of the room; the others share the rest."""
    info, recorded = run.info(), run.steps()
    room = (
        MAX_BYTES - sum(len(asset) for asset in _assets()) - len(dumps(info)) - 60_000
    )  # the last for the words of the traces
    steps: dict[int, Any] = {}
    words: dict[str, Any] = {}
    chosen = _chosen_steps(recorded)
    for left, step in zip(range(len(chosen), 0, -1), chosen, strict=True):
        share = room // 2 if left == len(chosen) > 1 else room // left
        try:
            steps[step], used = _step(run, step, share, words)
        except TelescopeError as error:  # a file that was damaged: the others are as they were
            _log.warning("left out of the report: %s", error)
        else:
            room -= used
    return {
        "run": info | {"recorded": len(recorded), "steps": sorted(steps)},
        "steps": steps,
        "words": words,
    }


def _step(run: RunData, step: int, room: int, words: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """Samples of a step that fit into half of the room, then their traces: each sample's largest |A| first."""
    index, rows, used = run.index(step), [], 0
    for position in _chosen_samples(index):
        page = page_sample(run.sample(step, position), max_tokens=TOKENS)
        row = page | {"position": position, "index_row": index[position], "traces": {}}
        if used + _size(row) <= room // 2:
            used += _size(row)
            rows.append(row)
    for left, row in zip(range(len(rows), 0, -1), rows, strict=True):
        sample, until = run.sample(step, row["position"]), used + (room - used) // left
        a = sample.columns.get("advantages") or [0.0] * len(sample)
        for t in sorted(range(len(row["token_ids"])), key=lambda t: -abs(a[t]))[:TRACED]:
            found = page_traces(sample, t, words)
            if used + _size(found) > until:
                break
            used += _size(found)
            row["traces"][t] = found
    return {"count": len(index), "samples": rows}, used


def _chosen_steps(steps: list[int]) -> list[int]:
    """The last step, the first, and some between: newest first."""
    if len(steps) <= MAX_STEPS:
        return steps[::-1]
    return [
        steps[round(i * (len(steps) - 1) / (MAX_STEPS - 1))] for i in reversed(range(MAX_STEPS))
    ]


def _chosen_samples(index: list[dict[str, Any]]) -> list[int]:
    """Whole prompts, so that their samples can be compared: half of them those with the largest |A|, then as recorded."""
    by_prompt: dict[str, list[int]] = {}
    for position, row in enumerate(index):
        by_prompt.setdefault(row["prompt_key"], []).append(position)
    groups = [group[:4] for group in by_prompt.values()]
    striking = sorted(groups, key=lambda group: -max(index[i]["max_abs_a"] or 0.0 for i in group))
    chosen: list[int] = []
    for group, room in [
        *((group, SAMPLES // 2) for group in striking),
        *((group, SAMPLES) for group in groups),
    ]:
        if group[0] not in chosen and len(chosen) < room:
            chosen += group
    return sorted(chosen)


def _size(value: Any) -> int:
    return len(_escaped(dumps(value)))


def _escaped(json: bytes) -> bytes:
    """JSON that cannot end the script element it stands in, nor open a comment there."""
    for character in (b"<", b">", b"&"):
        json = json.replace(character, b"\\u%04x" % ord(character))
    return json


def _assets() -> tuple[bytes, bytes, bytes]:
    """HTML, style and script. A file on disk cannot import another, so the modules become one, in the order of their imports."""
    static = files("telescope.viewer") / "static"
    html, css, *scripts = (
        static.joinpath(name).read_bytes() for name in ("index.html", "page.css", *SCRIPTS)
    )
    lines = (
        line
        for script in scripts
        for line in script.splitlines(keepends=True)
        if not line.startswith(b"import ")
    )
    return html, css, b"".join(line.removeprefix(b"export ") for line in lines)


def _html(data: dict[str, Any]) -> bytes:
    html, css, js = _assets()
    policy = (
        f"default-src 'none'; script-src {_hash(js)}; style-src {_hash(css)}; img-src data:; base-uri 'none'; "
        "form-action 'none'; require-trusted-types-for 'script'"
    )
    parts = {
        b"<!--policy-->": f'<meta http-equiv="Content-Security-Policy" content="{policy}">'.encode(),
        b'<link rel="stylesheet" href="page.css">': b"<style>" + css + b"</style>",
        b"<!--data-->": b'<script type="application/json" id="data">'
        + _escaped(dumps(data))
        + b"</script>",
        b'<script type="module" src="page.js"></script>': b'<script type="module">'
        + js
        + b"</script>",
    }
    head, body = b"", html
    for (
        mark,
        part,
    ) in (
        parts.items()
    ):  # in the order of the file, each mark searched only after the last: data holds no marks
        before, found, body = body.partition(mark)
        assert found, f"index.html has no {mark!r}"
        head += before + part
    return head + body


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
