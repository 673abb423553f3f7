"""The built-in task: is this sum right, and what is it?

    请问1+1=2？ → 是的，等于2！        请问1+1=3？ → 不对，等于2！

Statements a+b=c over single digits, half of them true. A response is scored on its verdict and on its sum. The model is
a two-layer Llama made here and warm-started on noisy answers: it knows the form and part of the arithmetic, and has to
learn the rest from reward alone. A slice of the statements is held out of both.
"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from telescope.seeds import mix_seed

TOP = 9  # largest sum, and largest number a statement claims
VERSION = 1  # of the model that is cached: counts up when anything below changes

_WORDS = ["请问", "你知道", "吗", "是", "的", "不", "对", "等于", "，", "！", "？", "+", "=", *"0123456789"]
_ANSWER = re.compile(r"(?:是的|不对)，等于(\d+)！")
_HELD_OUT_SHARE = 0.15


def statements() -> list[tuple[int, int, int]]:
    """Every a+b=c with a+b and c at most TOP."""
    return [(a, b, c) for a in range(TOP + 1) for b in range(TOP + 1 - a) for c in range(TOP + 1)]


def held_out(statement: tuple[int, int, int]) -> bool:
    return random.Random(mix_seed(2026, *statement)).random() < _HELD_OUT_SHARE


def row(a: int, b: int, c: int) -> dict[str, Any]:
    return {"prompt": f"请问{a}+{b}={c}？", "truth": a + b == c, "answer": a + b}


def rows(*, evaluation: bool) -> list[dict[str, Any]]:
    """The held-out statements, or all others; true ones are repeated until half of the rows are true."""
    chosen = [s for s in statements() if held_out(s) == evaluation]
    true, false = [s for s in chosen if s[0] + s[1] == s[2]], [s for s in chosen if s[0] + s[1] != s[2]]
    return [row(*s) for s in false] + [row(*true[i % len(true)]) for i in range(len(false))]


def right_answer(a: int, b: int, c: int) -> str:
    return f"{'是的' if a + b == c else '不对'}，等于{a + b}！"


def verdict(prompts: Sequence[str], completions: Sequence[str], truth: Sequence[bool], **_: Any) -> list[float]:
    """1 if the answer says 是的 to a true statement or 不对 to a false one."""
    return [float(text.startswith("是的" if right else "不对")) for text, right in zip(completions, truth, strict=True)]


def total(prompts: Sequence[str], completions: Sequence[str], answer: Sequence[int], **_: Any) -> list[float]:
    """1 if the answer has the right form and names the right sum."""
    matches = [_ANSWER.fullmatch(text) for text in completions]
    return [float(m is not None and int(m[1]) == right) for m, right in zip(matches, answer, strict=True)]


REWARDS = {"verdict": verdict, "sum": total}
WEIGHTS = {"verdict": 0.5, "sum": 0.5}


def ensure_model(cache: Path | None = None) -> Path:
    """The folder of the built-in model; made on first use, in seconds, without any download."""
    cache = cache or Path.home() / ".cache" / "telescope"
    folder = cache / f"arithmetic-v{VERSION}"
    if not (folder / "config.json").is_file():
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=cache))
        try:
            make_model(temporary)
            temporary.chmod(0o755)
            temporary.rename(folder)
        except OSError:
            if not (folder / "config.json").is_file():  # else somebody else was quicker
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def make_tokenizer() -> Any:
    """是的，等于2！ is 是 / 的 / ， / 等于 / 2 / ！, and EOS follows."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["<pad>", "<eos>", "<unk>", *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words = "|".join(re.escape(w) for w in sorted(_WORDS, key=len, reverse=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(f"{words}|."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")


def make_model(folder: Path, *, steps: int = 400, seed: int = 0) -> None:
    """Makes and warm-starts the model: cross-entropy on answers, most of them random."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

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
                tie_word_embeddings=False,
                pad_token_id=tokenizer.pad_token_id,
                bos_token_id=None,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, steps)
        pool, chance = [s for s in statements() if not held_out(s)], random.Random(seed)
        true = [s for s in pool if s[0] + s[1] == s[2]]
        for _ in range(steps):
            picked = [chance.choice(true if chance.random() < 0.5 else pool) for _ in range(256)]
            ids = torch.tensor([tokenizer(row(*s)["prompt"] + _noisy_answer(s, chance)).input_ids + [1] for s in picked])
            targets = ids.clone()
            targets[:, :7] = -100  # the prompt
            model(input_ids=ids, labels=targets).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            schedule.step()
    model.eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _noisy_answer(statement: tuple[int, int, int], chance: random.Random, right: float = 0.35) -> str:
    if chance.random() < right:
        return right_answer(*statement)
    return f"{chance.choice(['是的', '不对'])}，等于{chance.randint(0, TOP)}！"
