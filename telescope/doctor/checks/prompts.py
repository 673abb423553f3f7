"""Prompts: their format, their ids, and whether held-out ones are trained."""

from __future__ import annotations

import re

from telescope.doctor import thresholds as limits
from telescope.doctor.check import Sign, ledger_check
from telescope.doctor.curves import Curves
from telescope.doctor.recorded import Recorded, RecordedStep

_LEAST_PROMPTS = 8
_SHOWN = 40

_UNRENDERED = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\[\{['\"]role['\"]:|\{(prompt|question|instruction|input)\}"
)
"""What a template leaves behind that was not rendered."""
_TEMPLATES = {
    "ChatML": "<|im_start|>",
    "Llama 2": "[INST]",
    "Llama 3": "<|start_header_id|>",
    "Gemma": "<start_of_turn>",
    "Phi": "<|user|>",
}
"""Chat formats and what marks a turn in each."""
_CHAT_MODEL = re.compile(r"instruct|chat|-it\b|smollm2$", re.IGNORECASE)


@ledger_check(
    "data",
    "serious",
    charts=("response/truncated", "reward/score_mean"),
    settings=("data.prompt_key", "data.instruction", "model.path"),
)
def prompt_format(run: Curves, recorded: Recorded) -> Sign | None:
    """Prompts show a template that was not filled in, two formats at once, or none."""
    first = recorded.steps()[:1]
    prompts = [str(text) for step in first for text in step.known_rows("prompt") if text]
    if not prompts:
        return None
    variant, shown = _format_problem(prompts, run)
    if not variant and _have_unknown_tokens(first[0]):
        variant, shown = "unknown", prompts[0].strip()[:_SHOWN]
    if not variant:
        return None
    is_plain = variant == "plain"
    return Sign(
        since=first[0].step,
        numbers={"shown": shown},
        variant=variant,
        severity="warning" if is_plain else "serious",
        places=(first[0].response_place(0),),
        confidence=0.6 if is_plain else 0.85,
    )


def _format_problem(prompts: list[str], run: Curves) -> tuple[str, str]:
    """Which problem most prompts have, and what shows it; two empty texts if none."""
    left = [found[0] for text in prompts if (found := _UNRENDERED.search(text))]
    problems = {
        "unrendered": left,
        "twice": [text[:_SHOWN] for text in prompts if _is_templated_twice(text)],
        "doubled": [text[:_SHOWN] for text in prompts if _is_doubled(text)],
        "unknown": [text[:_SHOWN] for text in prompts if "<unk>" in text or "�" in text],
    }
    for problem, shown in problems.items():
        if len(shown) > len(prompts) / 2:
            return problem, shown[0]
    model = str(run.setting("model.path") or "")
    plain = [text for text in prompts if not any(mark in text for mark in _TEMPLATES.values())]
    if _CHAT_MODEL.search(model) and len(plain) == len(prompts) and "<" not in plain[0]:
        return "plain", plain[0].strip()[:_SHOWN]
    return "", ""


def _is_templated_twice(text: str) -> bool:
    """Marks of two formats, or two assistant turns opened at the end."""
    formats = [name for name, mark in _TEMPLATES.items() if mark in text]
    opened = text.count("<|im_start|>assistant")
    answered = text.count("<|im_end|>\n<|im_start|>user")
    return len(formats) > 1 or opened > 1 + answered


def _is_doubled(text: str) -> bool:
    """Whether the second half is the first one again."""
    words = text.strip()
    half = len(words) // 2
    return half > 2 and words[:half].strip() == words[half:].strip()


def _have_unknown_tokens(step: RecordedStep) -> bool:
    """Whether most prompts have the id that stands for what the tokenizer does not know."""
    unknown = step.meta.get("tokens", {}).get("unk")
    prompts = step.known_rows("prompt_ids")
    if unknown is None or not prompts:
        return False
    return 2 * sum(unknown in ids for ids in prompts) > len(prompts)


@ledger_check("data", "serious", settings=("model.tokenizer_path", "data.max_prompt_tokens"))
def prompt_ids(run: Curves, recorded: Recorded) -> Sign | None:
    """The ids that the model read are not those of the prompt's text, or only a part of it."""
    if run.setting("rollout.environment"):
        return None  # an environment may write prompts of its own
    steps = [step for step in recorded.steps() if not step.meta.get("rules")]
    pieces = _pieces(steps)
    for step in steps:
        texts = [str(text) for text in step.known_rows("prompt")]
        ids = [tuple(row) for row in step.known_rows("prompt_ids")]
        if len(set(texts)) < _LEAST_PROMPTS or len(ids) != len(texts):
            continue
        others = [row for row in range(len(ids)) if not _spells(ids[row], texts[row], pieces)]
        others = others or _without_end(ids, texts, pieces)
        if len(others) > limits.PROMPTS_DIFFER * len(ids):
            return Sign(
                since=step.step,
                numbers={"share": len(others) / len(ids), "shown": texts[others[0]][:_SHOWN]},
                places=step.response_places(others[:2]),
                confidence=0.85,
            )
        if len(set(ids)) < limits.PROMPTS_EQUAL * len(set(texts)):
            return Sign(
                since=step.step,
                numbers={"texts": len(set(texts)), "ids": len(set(ids))},
                variant="equal",
                places=step.response_places(_with_equal_ids(ids, texts)),
                confidence=0.9,
            )
    return None


def _pieces(steps: list[RecordedStep]) -> dict[int, bytes]:
    """The bytes of every id that stands in an answer."""
    found: dict[int, bytes] = {}
    for step in steps:
        answers = zip(step.rows("responses"), step.rows("token_bytes"), strict=False)
        for ids, pieces in answers:
            found.update(zip(ids, pieces or (), strict=False))
    return found


def _spells(ids: tuple[int, ...], text: str, pieces: dict[int, bytes]) -> bool:
    """Whether the known pieces stand in the text, in their order."""
    letters = text.encode("utf-8", "replace")
    at = 0
    for token in ids:
        piece = pieces.get(token, b"").strip()
        place = letters.find(piece, at)
        if place < 0:
            return False
        at = place + len(piece)
    return True


def _without_end(
    ids: list[tuple[int, ...]], texts: list[str], pieces: dict[int, bytes]
) -> list[int]:
    """All rows, if no text ends with its last id, as far as the pieces of last ids are known."""
    ends = [
        text.rstrip().encode("utf-8", "replace").endswith(piece)
        for row, text in zip(ids, texts, strict=True)
        if row and (piece := pieces.get(row[-1], b"").strip())
    ]
    is_cut = len(ends) >= _LEAST_PROMPTS and not any(ends)
    return list(range(len(ids))) if is_cut else []


def _with_equal_ids(ids: list[tuple[int, ...]], texts: list[str]) -> list[int]:
    """Two rows with different texts and the same ids."""
    first: dict[tuple[int, ...], int] = {}
    for row, own in enumerate(ids):
        before = first.setdefault(own, row)
        if texts[before] != texts[row]:
            return [before, row]
    return []


@ledger_check(
    "data",
    "warning",
    charts=("eval/greedy_accuracy", "eval/sampled_accuracy"),
    settings=("data.eval_files", "data.files"),
)
def eval_leak(run: Curves, recorded: Recorded) -> Sign | None:
    """Held-out prompts stand in the training data too."""
    held_out = recorded.held_out_prompts()
    if len(held_out) < _LEAST_PROMPTS:
        return None
    found = {}
    for number, row, prompt in recorded.prompts(limits.LEAK_STEPS):
        if prompt in held_out and prompt not in found:
            found[prompt] = (number, row)
    share = len(found) / len(held_out)
    if share <= limits.LEAKED:
        return None
    first, row = min(found.values())
    step = recorded.step(first)
    return Sign(
        since=first,
        numbers={"share": share, "count": len(held_out)},
        places=(step.response_place(row),) if step is not None else (),
        confidence=0.9,
    )
