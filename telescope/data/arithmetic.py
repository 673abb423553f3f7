"""The built-in task: is this sum right, and what is it?

    请问1+1=2？ → 是的，等于2！        你知道1+1=3吗？ → 不对，等于2！

Statements a+b=c over single digits, half of them true, each asked in two forms. A response is
scored on its verdict and on its sum. The model is a small Llama, warm-started on noisy answers. It
knows the form, names sums without confidence, and says yes to everything. Sure sums and the verdict
it learns from reward alone. Some statements are held out of both.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from telescope.data.seeds import mix_seed
from telescope.data.tiny import make_tiny_model, word_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

TOP = 9
"""The largest sum, and the largest number that a statement claims."""
Statement = tuple[int, int, int]
"""(a, b, c) for a+b=c."""

FORMS = ("请问{}+{}={}？", "你知道{}+{}={}吗？")
"""How a statement is asked."""

_WORDS = ["请问", "你知道", "吗", "是", "的", "不", "对", "等于", "，", "！", "？", "+", "="]
_WORDS += "0123456789"
_ANSWER = re.compile(r"(?:是的|不对)，(?:等于(\d+)！|(\d+\+\d+=)(\d+)！?)")
_HELD_OUT_SHARE = 0.42  # of the statements that have a mirror image
_BATCH_SIZE = 128
_NOISE_FROM = 0.75
"""Share of the warm start after which answers become noisy. With noise from the start, the model
has not learned to compare a+b with c; what PPO then learns of the verdict does not carry over to
statements that are held out."""


# ---- prompts


def statements() -> list[Statement]:
    """Every a+b=c with a+b and c at most TOP."""
    numbers = range(TOP + 1)
    triples = itertools.product(numbers, numbers, numbers)
    return [(a, b, c) for a, b, c in triples if a + b <= TOP]


def is_true(statement: Statement) -> bool:
    a, b, c = statement
    return a + b == c


def held_out(statement: Statement) -> bool:
    """Whether a statement is held out, at random.

    Its mirror image b+a=c is not: that is the only other true statement about these numbers.
    """
    a, b, c = statement
    if a == b:
        return False
    chance = random.Random(mix_seed(2026, min(a, b), max(a, b), c))
    if chance.random() >= _HELD_OUT_SHARE:
        return False
    hold_out_smaller_first = chance.random() < 0.5
    return hold_out_smaller_first == (a < b)


def row(a: int, b: int, c: int, form: str = FORMS[0]) -> dict[str, Any]:
    """The prompt of a statement, and what the rewards need to know about it."""
    return {"prompt": form.format(a, b, c), "truth": a + b == c, "answer": a + b}


def rows(*, evaluation: bool) -> list[dict[str, Any]]:
    """The held-out statements, or all others, in every form.

    True ones are repeated until half of the rows are true.
    """
    chosen = [s for s in statements() if held_out(s) == evaluation]
    true = [s for s in chosen if is_true(s)]
    false = [s for s in chosen if not is_true(s)]
    repeated = [true[i % len(true)] for i in range(len(false))]
    return [row(*statement, form) for statement in false + repeated for form in FORMS]


# ---- rewards


def verdict(
    prompts: Sequence[str], completions: Sequence[str], truth: Sequence[bool], **_: Any
) -> list[float]:
    """1 if the answer says 是的 to a true statement or 不对 to a false one."""
    scores = []
    for text, right in zip(completions, truth, strict=True):
        expected = "是的" if right else "不对"
        scores.append(float(text.startswith(expected)))
    return scores


def total(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[int], **_: Any
) -> list[float]:
    """1 if the answer has the right form and names the right sum.

    The form is 等于2！, or 1+1=2 with the question's own numbers.
    """
    scores = []
    for prompt, text, right in zip(prompts, completions, answer, strict=True):
        scores.append(float(_names_sum(prompt, text, right)))
    return scores


def _names_sum(prompt: str, text: str, right: int) -> bool:
    found = _ANSWER.fullmatch(text)
    if found is None:
        return False
    short_sum, question, long_sum = found.groups()
    if question is not None and question not in re.findall(r"\d+\+\d+=", prompt):
        return False
    return int(short_sum or long_sum) == right


REWARDS: dict[str, Callable[..., list[float]]] = {"verdict": verdict, "sum": total}
WEIGHTS = {"verdict": 0.5, "sum": 0.5}


# ---- the model


def model_folder() -> Path:
    """The folder of the built-in model, which comes with the package.

    It is not made on the user's machine: CPUs round differently, and by the end of the warm start
    a difference of 1e-7 decides whether the model tells held-out statements apart.
    `tools/make_builtin_model.py` made it.
    """
    return Path(__file__).parent / "arithmetic_model"


def make_tokenizer() -> Any:
    """是的，等于2！ is 是 / 的 / ， / 等于 / 2 / ！, and EOS follows."""
    return word_tokenizer(_WORDS)


def make_model(folder: Path) -> None:
    """Makes and warm-starts the model: all answers are right at first, 40 % in the end.

    Right ones come first, because sums and verdicts are not learned from noise in seconds. The
    noise then leaves PPO something to do.
    """
    tokenizer = make_tokenizer()
    steps = 800
    make_tiny_model(
        folder,
        tokenizer,
        warm_start_batches(tokenizer, steps, random.Random(1)),
        steps=steps,
        seed=1,
        lr=2e-3,
        final_lr=0.2,
        intermediate_size=256,
        # With larger weights it memorises statements, and fails on those held out.
        weight_decay=0.3,
        initializer_range=0.005,
        tie_word_embeddings=False,
    )


def right_answer(a: int, b: int, c: int) -> str:
    return f"{'是的' if a + b == c else '不对'}，等于{a + b}！"


def _noisy_answer(statement: Statement, chance: random.Random, right: float) -> str:
    """The right answer, or a yes with a random sum: it learns to say yes; the no is PPO's part."""
    if chance.random() < right:
        return right_answer(*statement)
    return f"是的，等于{chance.randint(0, TOP)}！"


def warm_start_batches(
    tokenizer: Any, steps: int, chance: random.Random
) -> Iterator[tuple[Tensor, Tensor]]:
    """(ids, labels) of each training step, [128, tokens]. The prompt has no labels.

    A step asks in one form, so that its rows are equally long.
    """
    import torch

    pool = [s for s in statements() if not held_out(s)]
    true = [s for s in pool if is_true(s)]
    prompt_ids = {
        (form, s): tokenizer(row(*s, form)["prompt"]).input_ids for form in FORMS for s in pool
    }
    answer_ids = {
        text: [*tokenizer(text).input_ids, tokenizer.eos_token_id]
        for text in {right_answer(*s) for s in statements()}
    }
    for step in range(steps):
        form = FORMS[step % len(FORMS)]
        progress = step / steps
        right = 1 - 0.6 * max(progress - _NOISE_FROM, 0) / (1 - _NOISE_FROM)
        picked = []
        for _ in range(_BATCH_SIZE):
            some = true if chance.random() < 0.5 else pool
            picked.append(chance.choice(some))
        prompts = [prompt_ids[form, statement] for statement in picked]
        answers = [answer_ids[_noisy_answer(statement, chance, right)] for statement in picked]
        ids = torch.tensor(
            [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
        )
        labels = ids.clone()
        labels[:, : len(prompts[0])] = -100
        yield ids, labels
