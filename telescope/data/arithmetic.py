"""The built-in task: is this sum right, and what is it?

    请问1+1=2？ → 是的，等于2！        请问1+1=3？ → 不对，等于2！

Statements a+b=c over single digits, half of them true. A response is scored on its verdict and on its sum. The model is
a two-layer Llama made here and warm-started on noisy answers: it knows the form, has sums as its best guess but no
confidence in them, and says yes to everything. Sure sums and the verdict it has to learn from reward alone. A slice of the
statements is held out of both.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from telescope.data.seeds import mix_seed
from telescope.models.cache import cached_model

TOP = 9  # largest sum, and largest number a statement claims

_WORDS = [
    "请问",
    "你知道",
    "吗",
    "是",
    "的",
    "不",
    "对",
    "等于",
    "，",
    "！",
    "？",
    "+",
    "=",
    *"0123456789",
]
_ANSWER = re.compile(r"(?:是的|不对)，(?:等于(\d+)！|(\d+\+\d+=)(\d+)！?)")
_HELD_OUT_SHARE = 0.42  # of the statements that have a mirror image


def statements() -> list[tuple[int, int, int]]:
    """Every a+b=c with a+b and c at most TOP."""
    return [(a, b, c) for a in range(TOP + 1) for b in range(TOP + 1 - a) for c in range(TOP + 1)]


def held_out(statement: tuple[int, int, int]) -> bool:
    """A random slice. The mirror image b+a=c stays in training: it is the only other true statement about these numbers."""
    a, b, c = statement
    chance = random.Random(mix_seed(2026, min(a, b), max(a, b), c))
    return a != b and chance.random() < _HELD_OUT_SHARE and (a < b) == (chance.random() < 0.5)


def row(a: int, b: int, c: int) -> dict[str, Any]:
    return {"prompt": f"请问{a}+{b}={c}？", "truth": a + b == c, "answer": a + b}


def rows(*, evaluation: bool) -> list[dict[str, Any]]:
    """The held-out statements, or all others; true ones are repeated until half of the rows are true."""
    chosen = [s for s in statements() if held_out(s) == evaluation]
    true, false = (
        [s for s in chosen if s[0] + s[1] == s[2]],
        [s for s in chosen if s[0] + s[1] != s[2]],
    )
    return [row(*s) for s in false] + [row(*true[i % len(true)]) for i in range(len(false))]


def right_answer(a: int, b: int, c: int) -> str:
    return f"{'是的' if a + b == c else '不对'}，等于{a + b}！"


def verdict(
    prompts: Sequence[str], completions: Sequence[str], truth: Sequence[bool], **_: Any
) -> list[float]:
    """1 if the answer says 是的 to a true statement or 不对 to a false one."""
    return [
        float(text.startswith("是的" if right else "不对"))
        for text, right in zip(completions, truth, strict=True)
    ]


def total(
    prompts: Sequence[str], completions: Sequence[str], answer: Sequence[int], **_: Any
) -> list[float]:
    """1 if the answer has the right form and names the right sum: 等于2！, or 1+1=2 with the question's own numbers."""
    scores = []
    for prompt, text, right in zip(prompts, completions, answer, strict=True):
        m = _ANSWER.fullmatch(text)
        asked = m is not None and (m[2] is None or m[2] in re.findall(r"\d+\+\d+=", prompt))
        scores.append(float(m is not None and asked and int(m[1] or m[3]) == right))
    return scores


REWARDS: dict[str, Callable[..., list[float]]] = {"verdict": verdict, "sum": total}
WEIGHTS = {"verdict": 0.5, "sum": 0.5}


def ensure_model(cache: Path | None = None) -> Path:
    """The folder of the built-in model; made on first use, in seconds, without any download.

    It is named after this file's content, so that a model made by other code is never taken for this one's.
    """
    return cached_model(
        f"arithmetic-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}",
        make_model,
        cache,
    )


def make_tokenizer() -> Any:
    """是的，等于2！ is 是 / 的 / ， / 等于 / 2 / ！, and EOS follows."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words = "|".join(re.escape(w) for w in sorted(_WORDS, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{words}|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


def make_model(folder: Path, *, steps: int = 450, seed: int = 0) -> None:
    """Makes and warm-starts the model: cross-entropy on answers, all right at first and 40 % right in the end.

    Right ones first, because sums are not learned from noise in seconds; the noise then leaves PPO something to do.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from telescope.models.load import quiet

    tokenizer = make_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=96,
                intermediate_size=256,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=64,
                initializer_range=0.005,  # from larger weights it learns statements by heart, and fails on those held out
                tie_word_embeddings=False,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01, fused=True)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.2, steps)
        pool, chance = [s for s in statements() if not held_out(s)], random.Random(seed)
        true = [s for s in pool if s[0] + s[1] == s[2]]
        prompts = {s: tokenizer(row(*s)["prompt"]).input_ids for s in pool}
        answers = {
            text: [*tokenizer(text).input_ids, tokenizer.eos_token_id]
            for text in {right_answer(*s) for s in statements()}
        }
        for step in range(steps):
            right = 1 - 0.6 * step / steps
            picked = [chance.choice(true if chance.random() < 0.5 else pool) for _ in range(128)]
            ids = torch.tensor(
                [prompts[s] + answers[_noisy_answer(s, chance, right)] for s in picked]
            )
            targets = ids.clone()
            targets[:, :7] = -100  # the prompt
            model(input_ids=ids, labels=targets).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    with quiet():
        model.eval().save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _noisy_answer(statement: tuple[int, int, int], chance: random.Random, right: float) -> str:
    """The right answer, or a yes with a random sum: so the model comes to say yes, and the no is left to PPO."""
    return (
        right_answer(*statement)
        if chance.random() < right
        else f"是的，等于{chance.randint(0, TOP)}！"
    )
