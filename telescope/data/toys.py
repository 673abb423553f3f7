"""The built-in tasks with a tool: questions that cannot be answered without asking it.

    37*48=?             <calc>37*48</calc> <result>1776</result> <answer>1776</answer>
    river of kaban ?    <search>river kaban</search>
                        <information>the river of kaban is bodel</information>
                        <answer>bodel</answer>

Products of two-digit numbers are too hard for a model this small, and the passages are made up.
Each task has a small Llama, warm-started on transcripts of which most do not ask, or ask for
something else. That asking the right thing pays it must learn from reward alone. Held-out
questions are about other numbers, and about facts that were never asked for.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from telescope.data import tiny
from telescope.data.seeds import mix_seed
from telescope.data.tiny import make_tiny_model, word_tokenizer
from telescope.errors import TelescopeError
from telescope.models.cache import cached_model

if TYPE_CHECKING:
    from torch import Tensor


def _join_syllables(first: str, second: str) -> list[str]:
    pairs = itertools.product(first.split(), second.split())
    return [a + b for a, b in pairs]


FACTORS = range(32, 100)  # every product has four digits
KINDS = ["river", "king", "flower", "dish"]
PLACES = _join_syllables("ka lo mi ru se ta", "ban del fin gor mur zen")
NAMES = _join_syllables("al bo ce du fe hi", "bar dan kel mos nor pit")

_ANSWER_TAGS = ["<answer>", "</answer>"]
_CALC_TAGS = ["<calc>", "</calc>", "<result>", "</result>"]
_SEARCH_TAGS = ["<search>", "</search>", "<information>", "</information>"]
_FACT_WORDS = ["the", "of", "is", "?", "error", *KINDS, *PLACES, *NAMES]
_WORDS = {
    "calculator": [*_ANSWER_TAGS, *_CALC_TAGS, *"0123456789*=?", "error"],
    "search": [*_ANSWER_TAGS, *_SEARCH_TAGS, *_FACT_WORDS],
}
_BATCH_SIZE = 64


# ---- questions and facts


def _fact(kind: str, place: str, name: str) -> str:
    return f"the {kind} of {place} is {name}"


def _name_of(kind: str, place: str) -> str:
    return random.Random(f"{kind} of {place}").choice(NAMES)


PASSAGES = [_fact(kind, place, _name_of(kind, place)) for kind in KINDS for place in PLACES]
"""What the built-in search finds."""


def rows(task: str, *, evaluation: bool) -> list[dict[str, Any]]:
    """The held-out questions, or all others."""
    if task == "calculator":
        factors = itertools.product(FACTORS, FACTORS)
        return [
            {"prompt": f"{a}*{b}=?", "answer": str(a * b)}
            for a, b in factors
            if _held_out(a, b) == evaluation
        ]
    facts = itertools.product(enumerate(KINDS), enumerate(PLACES))
    return [
        {"prompt": f"{kind} of {place} ?", "answer": _name_of(kind, place)}
        for (i, kind), (j, place) in facts
        if _held_out(i, j, share=4) == evaluation
    ]


def _held_out(a: int, b: int, share: int = 16) -> bool:
    """One question in `share`, at random."""
    return mix_seed(2026, a, b) % share == 0


def row_of(task: str, prompt: str) -> dict[str, Any]:
    """The row of a prompt of the task, with what the reward needs to know."""
    everything = rows(task, evaluation=False) + rows(task, evaluation=True)
    for row in everything:
        if row["prompt"] == prompt:
            return row
    raise TelescopeError(
        f"{prompt!r} is not a question of the built-in {task} task: "
        f"ask as in {everything[0]['prompt']!r}"
    )


# ---- the model


def ensure_model(task: str) -> Path:
    """The folder of a task's model; made on first use, in seconds, without any download.

    Its name holds a hash of the code that makes it. So a model that other code has made is never
    used.
    """
    digest = hashlib.sha256()
    for file in (__file__, tiny.__file__):
        digest.update(Path(file).read_bytes())
    return cached_model(f"{task}-{digest.hexdigest()[:12]}", partial(make_model, task))


def make_tokenizer(task: str) -> Any:
    """Digits and signs one by one, or words with a space between."""
    return word_tokenizer(_WORDS[task], spaces=True, join=task == "calculator")


def make_model(task: str, folder: Path) -> None:
    """Makes the model and teaches it the form.

    All transcripts are right at first, a fifth of them in the end.
    """
    tokenizer = make_tokenizer(task)
    steps = 250
    make_tiny_model(
        folder,
        tokenizer,
        _batches(task, tokenizer, steps, random.Random(0)),
        steps=steps,
        seed=0,
        lr=3e-3,
        final_lr=0.1,
        intermediate_size=192,
    )


class _Transcript(NamedTuple):
    """A conversation. The model writes call and answer; both call and reply may be empty."""

    prompt: str
    call: str
    reply: str
    answer: str


def _transcript(task: str, chance: random.Random, right: float) -> _Transcript:
    """A transcript that is right with this probability.

    The others make no call (three in four), or one for something else. Facts are made up anew for
    each: what the passages say is not in the model.
    """
    if chance.random() < right:
        kind = "right"
    else:
        kind = chance.choice(["silent", "silent", "silent", "astray"])
    make = _calculation if task == "calculator" else _search
    made = make(chance, asks_right=kind == "right")
    return made._replace(call="", reply="") if kind == "silent" else made


def _calculation(chance: random.Random, asks_right: bool) -> _Transcript:
    a, b = chance.choices(FACTORS, k=2)
    c, d = chance.choices(FACTORS, k=2)
    while _held_out(a, b):
        a, b = chance.choices(FACTORS, k=2)
    if asks_right:
        c, d = a, b
    return _Transcript(
        prompt=f"{a}*{b}=?",
        call=f"<calc>{c}*{d}</calc>",
        reply=f"<result>{c * d}</result>",
        answer=f"<answer>{c * d}</answer>",
    )


def _search(chance: random.Random, asks_right: bool) -> _Transcript:
    kind = chance.choice(KINDS)
    place = chance.choice(PLACES)
    name = chance.choice(NAMES)
    prompt = f"{kind} of {place} ?"
    if not asks_right:
        kind = chance.choice(KINDS)
        place = chance.choice(PLACES)
    return _Transcript(
        prompt=prompt,
        call=f"<search>{kind} {place}</search>",
        reply=f"<information>{_fact(kind, place, name)}</information>",
        answer=f"<answer>{name}</answer>",
    )


def _batches(
    task: str, tokenizer: Any, steps: int, chance: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, labels) of each training step, [64, tokens].

    Only what the model writes has labels: not the prompt, not the tool's reply.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    for step in range(steps):
        right = 1 - 0.8 * step / steps
        transcripts = [_transcript(task, chance, right) for _ in range(_BATCH_SIZE)]
        texts = [text for transcript in transcripts for text in transcript]
        encoded = tokenizer(texts).input_ids
        ids = []
        labels = []
        for first in range(0, len(encoded), 4):
            prompt, call, reply, answer = encoded[first : first + 4]
            answer = [*answer, tokenizer.eos_token_id]
            ids.append(torch.tensor(prompt + call + reply + answer))
            no_prompt = [-100] * len(prompt)
            no_reply = [-100] * len(reply)
            labels.append(torch.tensor(no_prompt + call + no_reply + answer))
        yield (
            pad_sequence(ids, True, tokenizer.pad_token_id),
            pad_sequence(labels, True, -100),
        )
