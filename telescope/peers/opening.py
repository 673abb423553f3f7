"""`telescope open`: a run folder made from another trainer's files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.ledger.reader import path_of
from telescope.ledger.reader import steps as steps_of
from telescope.peers.readers import kind_of
from telescope.peers.readers.base import Kind
from telescope.peers.recorder import Recorder

WHAT_IT_SHOWS = {
    "values": "V on the posts, δ, and whether A and R follow from them",
    "token_level_rewards": "δ and A recomputed",
    "returns": "R, the critic's target",
    "advantages": "credit of each token",
    "old_log_probs": "ratio ρ, and no clipping",
    "log_probs": "ratio ρ, and no clipping",
    "ref_log_prob": "KL to the reference",
    "entropy": "sign of where the policy was undecided",
    "scores": "way to tell which answers are right",
    "group": "group that an answer is compared with",
}
"""Column -> what cannot be shown without it."""


WORD = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True)
class Opened:
    """What was made, and what is missing."""

    folder: Path
    kind: Kind
    steps: list[int]
    columns: list[str]
    missing: dict[str, str]


def open_files(
    path: Path,
    folder: Path,
    *,
    kind: str | None = None,
    tokenizer: Any = None,
    settings: Mapping[str, Any] | None = None,
    samples: int = 64,
) -> Opened:
    """Reads another trainer's files into a run folder."""
    if not path.exists():
        raise TelescopeError(f"no file or folder {path}")
    found = kind_of(path, kind)
    steps = found.steps(path)
    if not steps:
        raise TelescopeError(f"{path} has no files of {found.name}: looked for {found.pattern}")
    _make_room(folder)
    recorder = Recorder(
        folder,
        samples=samples,
        tokenizer=tokenizer,
        settings=settings,
        trainer=f"{found.name} {found.version}",
        strict=True,
    )
    columns: set[str] = set()
    for step, files in steps.items():
        try:
            given = found.read(files)
            recorder.record(step, **with_tokens(given, tokenizer))
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            problem = (str(error) or type(error).__name__).splitlines()[0]
            if any(problem.startswith(str(file)) for file in files):
                raise TelescopeError(problem) from None  # the reader said it
            names = ", ".join(map(str, files))
            raise TelescopeError(f"{names} cannot be read as {found.name}: {problem}") from None
        columns |= given.keys()
    recorder.close()
    missing = {name: use for name, use in WHAT_IT_SHOWS.items() if name not in columns}
    return Opened(folder, found, list(steps), sorted(columns), missing)


def _make_room(folder: Path) -> None:
    """Removes what an earlier `open` made; a run of another origin is left alone."""
    made = [folder / "metrics.jsonl", *(path_of(folder, step) for step in steps_of(folder))]
    there = [file for file in made if file.exists()]
    if there and not (folder / "watched.toml").exists():
        raise TelescopeError(f"{folder} is another run: give another folder with --to")
    for file in there:
        file.unlink()


def with_tokens(given: dict[str, Any], tokenizer: Any) -> dict[str, Any]:
    """Adds tokens where a trainer wrote texts only: those of the tokenizer, else words.

    A number per answer becomes a number per token.
    """
    if "responses" in given:
        return given
    texts = given["texts"]
    if tokenizer is not None:
        ids = [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        made: dict[str, Any] = {"responses": ids}
    else:
        words = [WORD.findall(text) for text in texts]
        numbers = {word: i for i, word in enumerate(sorted({w for row in words for w in row}))}
        ids = [[numbers[word] for word in row] for row in words]
        made = {"responses": ids, "pieces": words}
    if "advantages" in given:
        pairs = zip(given["advantages"], ids, strict=True)
        made["advantages"] = [[float(one)] * len(row) for one, row in pairs]
    return given | made
