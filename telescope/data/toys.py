"""The built-in tasks of the two environments: questions that nobody can answer without asking the tool.

    37*48=?             <calc>37*48</calc> <result>1776</result> <answer>1776</answer>
    river of kaban ?    <search>river kaban</search> <information>the river of kaban is bodel</information> <answer>bodel</answer>

Products of two-digit numbers are too much for a model this small, and the passages are made up. Each task has a tiny Llama, made
here: it has seen transcripts of which most do not ask, or ask for something else. That asking the right thing pays it has to learn
from reward alone. Held-out questions are about other numbers, and about facts that were never asked for.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.models.cache import cached_model

FACTORS = range(32, 100)  # every product has four digits
KINDS = ["river", "king", "flower", "dish"]
PLACES = [
    a + b
    for a, b in itertools.product(
        ("ka", "lo", "mi", "ru", "se", "ta"), ("ban", "del", "fin", "gor", "mur", "zen")
    )
]
NAMES = [
    a + b
    for a, b in itertools.product(
        ("al", "bo", "ce", "du", "fe", "hi"), ("bar", "dan", "kel", "mos", "nor", "pit")
    )
]

_TAGS = ["<answer>", "</answer>"]
_WORDS = {
    "calculator": [*_TAGS, "<calc>", "</calc>", "<result>", "</result>", *"0123456789*=?", "error"],
    "search": [
        *_TAGS,
        "<search>",
        "</search>",
        "<information>",
        "</information>",
        "the",
        "of",
        "is",
        "?",
        "error",
        *KINDS,
        *PLACES,
        *NAMES,
    ],
}


def _fact(kind: str, place: str, name: str) -> str:
    return f"the {kind} of {place} is {name}"


def _name_of(kind: str, place: str) -> str:
    return random.Random(f"{kind} of {place}").choice(NAMES)


PASSAGES = [_fact(kind, place, _name_of(kind, place)) for kind in KINDS for place in PLACES]
"""What the built-in search finds."""


def rows(task: str, *, evaluation: bool) -> list[dict[str, Any]]:
    """The questions that are held out, or all others."""
    if task == "calculator":
        return [
            {"prompt": f"{a}*{b}=?", "answer": str(a * b)}
            for a in FACTORS
            for b in FACTORS
            if _held_out(a, b) == evaluation
        ]
    asked = [
        (kind, place)
        for i, kind in enumerate(KINDS)
        for j, place in enumerate(PLACES)
        if _held_out(i, j, 4) == evaluation
    ]
    return [
        {"prompt": f"{kind} of {place} ?", "answer": _name_of(kind, place)} for kind, place in asked
    ]


def _held_out(a: int, b: int, share: int = 16) -> bool:
    """One in `share`, at random."""
    return mix_seed(2026, a, b) % share == 0


def row_of(task: str, prompt: str) -> dict[str, Any]:
    """What the reward needs to know about a prompt of the task."""
    known = {
        row["prompt"]: row for held_out in (False, True) for row in rows(task, evaluation=held_out)
    }
    if prompt not in known:
        raise TelescopeError(
            f"{prompt!r} is no question of the built-in {task} task: ask as in {next(iter(known))!r}"
        )
    return known[prompt]


def ensure_model(task: str, cache: Path | None = None) -> Path:
    """The folder of a task's model; made on first use, in seconds, and named after this file's content."""
    return cached_model(
        f"{task}-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}",
        partial(make_model, task),
        cache,
    )


def make_tokenizer(task: str) -> Any:
    """Digits and signs one by one, or words with a space between."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(
        models.WordLevel(
            {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *_WORDS[task]])},
            unk_token="<unk>",
        )
    )
    words = "|".join(re.escape(word) for word in sorted(_WORDS[task], key=len, reverse=True))
    apart = [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Split(Regex(rf"{words}|\w+|."), behavior="isolated"),
    ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(apart)
    if task == "calculator":
        tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def _transcript(task: str, chance: random.Random, right: float) -> tuple[str, str, str, str]:
    """Prompt, call, reply and answer: right with this probability, or else without a call or with one for something else.

    Facts are made up anew for each: what the passages say is not in the model.
    """
    kind = (
        "right"
        if chance.random() < right
        else chance.choice(["silent", "silent", "silent", "astray"])
    )
    if task == "calculator":
        (a, b), (c, d) = chance.choices(FACTORS, k=2), chance.choices(FACTORS, k=2)
        while _held_out(a, b):
            a, b = chance.choices(FACTORS, k=2)
        c, d = (a, b) if kind == "right" else (c, d)
        call, reply, answer = f"<calc>{c}*{d}</calc>", f"<result>{c * d}</result>", str(c * d)
        prompt = f"{a}*{b}=?"
    else:
        what, place, answer = chance.choice(KINDS), chance.choice(PLACES), chance.choice(NAMES)
        prompt = f"{what} of {place} ?"
        if kind != "right":
            what, place = chance.choice(KINDS), chance.choice(PLACES)
        call, reply = (
            f"<search>{what} {place}</search>",
            f"<information>{_fact(what, place, answer)}</information>",
        )
    return (
        (prompt, "", "", f"<answer>{answer}</answer>")
        if kind == "silent"
        else (prompt, call, reply, f"<answer>{answer}</answer>")
    )


def make_model(task: str, folder: Path, *, steps: int = 250, seed: int = 0) -> None:
    """Makes the model, and teaches it the form: cross-entropy on transcripts, all right at first and a fifth of them in the end."""
    import torch
    from torch.nn.utils.rnn import pad_sequence
    from transformers import LlamaConfig, LlamaForCausalLM

    from telescope.models.load import quiet

    tokenizer = make_tokenizer(task)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=96,
                intermediate_size=192,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=64,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, steps)
        chance = random.Random(seed)
        for step in range(steps):
            said = [_transcript(task, chance, 1 - 0.8 * step / steps) for _ in range(64)]
            parts = iter(tokenizer([text for one in said for text in one]).input_ids)
            rows = [
                (prompt, call, reply, [*answer, tokenizer.eos_token_id])
                for prompt, call, reply, answer in zip(*[parts] * 4, strict=True)
            ]
            ids = [torch.tensor([token for part in row for token in part]) for row in rows]
            # it learns its own words, not the prompt and not what the tool says
            targets = [
                torch.tensor(
                    [token if i % 2 else -100 for i, part in enumerate(row) for token in part]
                )
                for row in rows
            ]
            inputs, labels = (
                pad_sequence(some, True, value)
                for some, value in ((ids, tokenizer.pad_token_id), (targets, -100))
            )
            model(input_ids=inputs, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    with quiet():
        model.eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
