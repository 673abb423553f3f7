"""Damaged files: every file of a run folder, read by every command that reads it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

from torture.processes import Ended, in_child
from torture.table import Row
from torture.workshop import Workshop, contents, copy, differing

SAYS_DAMAGE = (
    "damaged",
    "cannot be read",
    "is missing",
    "was changed",
    "unknown, because",
    "is not valid TOML",
)


def torture(shop: Workshop, count: int) -> Row:
    row = Row("damaged files")
    readers = ("eval", "export", "explain", "report", "doctor", "resume")
    whole = shop.undisturbed
    known: dict[str, Any] = {}
    files = sorted(path.relative_to(whole) for path in whole.rglob("*") if path.is_file())
    files = [name for name in files if name.name != ".lock"]  # it is empty
    while shop.goes_on(row, count):
        number = row.faults
        name = files[number % len(files)]
        reader = readers[number // len(files) % len(readers)]
        if reader not in known:
            known[reader] = _read(shop, copy(whole, shop.folder / "damage"), reader)[1]
        run = copy(whole, shop.folder / "damage")
        how = _damage(shop, run, run / name)
        what = f"{reader} with {how} in {name}"
        ended, result = _read(shop, run, reader)
        row.faults += 1
        row.runs += 1
        row.look(ended, what)
        told = any(word in ended.said for word in SAYS_DAMAGE)
        if ended.code == 0 and result != known[reader]:
            if not told:
                row.silent.append(f"{what}: {ended.said}")
            elif reader == "resume":
                # Weights, moments and state: whatever was said, they must not differ.
                names = differing(result, known[reader])
                trained = [name for name in names if name.startswith("step_")]
                row.differences += [f"{what}: {name}" for name in trained]
    return row


def _damage(shop: Workshop, run: Path, path: Path) -> str:
    """Mostly one flipped bit; sometimes the end is missing, or it is another step's file."""
    chance = shop.chance
    data = bytearray(path.read_bytes())
    place = chance.randrange(len(data))
    others = _of_other_steps(run, path)
    kinds = ["a flipped bit"] * 6 + ["a missing end", "zeros", "a pipe", "a folder"]
    how = chance.choice(kinds + ["another step's file"] * bool(others))
    if how in ("a pipe", "a folder"):
        path.unlink()
        os.mkfifo(path) if how == "a pipe" else path.mkdir()
        return how
    if how == "a flipped bit":
        bit = chance.randrange(8)
        data[place] ^= 1 << bit
        how = f"bit {bit} of byte {place} flipped"
    elif how == "a missing end":
        del data[place:]
        how = f"the end after byte {place} missing"
    elif how == "another step's file":
        data = bytearray(chance.choice(others).read_bytes())
    else:
        zeros = bytes(min(512, len(data) - place))
        data[place : place + len(zeros)] = zeros
        how = f"zeros at byte {place}"
    times = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # a disk does not say when it rots
    return how


def _of_other_steps(run: Path, path: Path) -> list[Path]:
    """The same file of other steps."""
    alike = [
        other for other in sorted(run.rglob("*")) if _without_step(other) == _without_step(path)
    ]
    return [other for other in alike if other.is_file() and other != path]


def _without_step(path: Path) -> str:
    return re.sub(r"_[0-9]{6}", "", str(path))


def _read(shop: Workshop, run: Path, reader: str) -> tuple[Ended, Any]:
    """Runs a command that reads the folder. Returns its end, and all that it computed."""
    if reader == "resume":
        ended = shop.train(run, "--steps", "6")
        return ended, in_child(lambda: contents(run)) if ended.code == 0 else None
    out = run.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    arguments = {
        "eval": ["eval", str(run)],
        "export": ["export", str(run), str(out)],
        "explain": ["explain", str(run), "--lang", "en"],
        "report": ["report", str(run), "-o", str(out / "report.html")],
        "doctor": ["doctor", str(run)],
    }[reader]
    ended = shop.command(run, *arguments)
    written = {
        str(path.relative_to(out)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }
    return ended, (ended.said, written)
