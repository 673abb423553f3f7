"""One HTML file that holds a run's page. It opens from disk and asks no network.

The file holds the answers of some addresses of the page, under the same paths as the server has
them. `chosen` picks the steps and samples; every token of a chosen sample has its arithmetic.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import gzip
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.viewer.bundle import DATA, POLICY, SCRIPT, STYLE, Bundle, bundle
from telescope.viewer.payload import dumps
from telescope.viewer.report_data import report_data
from telescope.viewer.runs import Runs

MAX_BYTES = 4_800_000
"""Of the whole file."""


def write_report(run: Path, out: Path) -> Path:
    """Writes the page of `run` to `out` in one move, and returns `out`."""
    runs = Runs(Path(run))
    if not runs.single:
        raise TelescopeError(f"{run} holds several runs: a report is about one, e.g. {run}/NAME")
    page = bundle()
    assets = len(page.html) + len(page.style) + len(page.script)
    html = _html(page, report_data(runs, room=_plain_size(MAX_BYTES - assets)))
    out = Path(out)
    temporary = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(out)
        handle, temporary = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
        with os.fdopen(handle, "wb") as file:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(handle, fcntl.LOCK_SH)
            file.write(html)
            file.flush()
            os.fsync(handle)
            os.chmod(temporary, 0o644)
            os.replace(temporary, out)
    except OSError as error:
        raise TelescopeError(
            f"cannot write the report {out}: {error.strerror}; choose another path with -o"
        ) from error
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return out


def _remove_leftovers(out: Path) -> None:
    """Removes what killed processes were writing: a living one holds a lock on its file."""
    for path in out.parent.glob(f".{out.name}.*"):
        if not path.is_file():
            continue
        with contextlib.suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _plain_size(size: int) -> int:
    """Bytes that fit into so many characters of base64."""
    return size // 4 * 3


def _html(page: Bundle, data: dict[str, Any]) -> bytes:
    policy = (
        f"default-src 'none'; script-src {_hash(page.script)}; style-src {_hash(page.style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
    )
    # Base64 of gzip: no text of a model can end the element that it stands in.
    packed = base64.b64encode(gzip.compress(dumps(data), 9, mtime=0))
    parts = {
        POLICY: f'<meta http-equiv="Content-Security-Policy" content="{policy}">'.encode(),
        STYLE: _element(b"style", page.style),
        DATA: _element(b'script type="text/plain" id="data"', packed),
        SCRIPT: _element(b'script type="module"', page.script),
    }
    head = b""
    html = page.html
    for mark, part in parts.items():  # in the order of the file
        before, found, html = html.partition(mark)
        assert found, f"index.html has no {mark!r}"
        head += before + part
    return head + html


def _element(tag: bytes, content: bytes) -> bytes:
    name = tag.split()[0]
    return b"<" + tag + b">" + content + b"</" + name + b">"


def _hash(text: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
