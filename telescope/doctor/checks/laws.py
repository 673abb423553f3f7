"""Laws that recorded numbers cannot break: masks, shifts, and every formula recomputed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from telescope.doctor import thresholds as limits
from telescope.doctor.check import (
    OfLedger,
    OfStep,
    Sign,
    attempt,
    curve_check,
    first_step,
    ledger_check,
)
from telescope.doctor.curves import Curves
from telescope.doctor.finding import Place
from telescope.doctor.recorded import SHOWN, Recorded, RecordedStep
from telescope.errors import TelescopeError
from telescope.explain.trace import Tracer
from telescope.peers.faults import find_faults
from telescope.peers.given import Fault, Given

ENDS = (
    b"</s>",
    b"<eos>",
    b"<|im_end|>",
    b"<|endoftext|>",
    b"<|eot_id|>",
    b"<end_of_turn>",
    b"<|end|>",
)
"""What EOS is called in common vocabularies."""
_EOS_SHARE = 0.5
"""Share of finished responses that end with the same token, so that it is EOS."""
_TOKENS = 24
"""Tokens of a response that are recomputed: its first and last ones."""


# ---- the faults of any batch: telescope.peers.faults ----

FAULTS = {
    "nan_in_padding": (),
    "score_on_padding": ("reward.functions",),
    "mask_shifted": (),
    "values_after_token": (),
    "returns_from_whitened": ("credit.whiten",),
    "other_temperature": ("rollout.temperature",),
}
"""Fault of a batch -> settings that it is about."""


STATISTICS = ("other_temperature",)
"""Those that are no law: two recorded steps must show them, if there are two."""


def _check_fault(id: str, settings: tuple[str, ...]) -> None:
    """Registers the check of one of these faults."""

    def in_step(run: Curves, step: RecordedStep) -> Sign | None:
        faults = _faults_of(step, run.setting("model.dtype"))
        return next((_sign_of(step, fault) for fault in faults if fault.id == id), None)

    look = _repeated(in_step) if id in STATISTICS else first_step(in_step)
    look.__name__ = id
    ledger_check("laws", "serious", settings=settings)(look)


def _repeated(look: OfStep) -> OfLedger:
    """Makes a check of one step one of the ledger: a second step must show it too."""

    def of_ledger(run: Curves, recorded: Recorded) -> Sign | None:
        steps = recorded.steps()
        signs = (attempt(look, run, step) for step in steps)
        found = list(islice((sign for sign in signs if sign is not None), 2))
        return found[0] if found and len(found) == min(2, len(steps)) else None

    return of_ledger


for _id, _settings in FAULTS.items():
    _check_fault(_id, _settings)


def _sign_of(step: RecordedStep, fault: Fault) -> Sign:
    spans = list(step.spans())
    start, end = spans[fault.row] if fault.row < len(spans) else (0, 0)
    places = (step.place(start + fault.token),) if fault.token < end - start else ()
    numbers = {"said_en": fault.en[:1].upper() + fault.en[1:], "said_zh": fault.zh}
    return Sign(since=step.step, numbers=numbers, places=places, confidence=0.95)


def _faults_of(step: RecordedStep, dtype: str | None) -> list[Fault]:
    """Faults that were found when the step was recorded, and those that its rows show."""
    kept = [Fault(**each) for each in step.meta.get("faults", ())]
    whole = dtype == "float32" and not step.meta.get("rules")
    return kept + find_faults(replace(_given(step), whole=whole))


def _given(step: RecordedStep) -> Given:
    names = ("values", "returns", "whitened", "token_level_rewards", "token_level_scores")
    recorded = {
        name: step.tokens_of(name) for name in (*names, "old_log_probs", "rollout_log_probs")
    }
    columns = {name: rows for name, rows in recorded.items() if rows}
    if not step.settings.estimator_definition.needs.critic:
        columns.pop("values", None)
    prompts = step.known_rows("prompt_ids") or step.known_rows("prompt")
    return Given(
        responses=[np.array(row) for row in step.rows("responses")],
        mask=step.tokens_of("response_mask"),
        columns=columns,
        prompts=prompts if any(len(prompt) for prompt in prompts) else None,
        eos=eos_of(step),
    )


def eos_of(step: RecordedStep) -> int | None:
    """The token that ends responses: by its name, or because it ends most and stands only there."""
    if any(written == 0 for mask in step.rows("response_mask") for written in mask[:-1]):
        return None  # with tools, the mask may end anywhere
    ids = step.rows("responses")
    for row, pieces in zip(ids, step.rows("token_bytes"), strict=False):
        named = [token for token, piece in zip(row, pieces or (), strict=False) if piece in ENDS]
        if named:
            return int(named[0])
    cut = step.rows("truncated") or [False] * len(step)
    ended = [row for row, late in zip(ids, cut, strict=True) if row and not late]
    if not ended:
        return None
    values, counts = np.unique([row[-1] for row in ended], return_counts=True)
    last = int(values[counts.argmax()])
    once = sum(row[-1] == last and row.count(last) == 1 for row in ended)
    return last if once > _EOS_SHARE * len(ended) else None


# ---- every formula recomputed ----


@ledger_check("laws", "serious", settings=("credit.estimator", "credit.gamma", "credit.lam"))
def law_broken(run: Curves, recorded: Recorded) -> Sign | None:
    """A recorded number does not follow from the recorded numbers that it is made of."""
    steps = recorded.steps()
    stride = max(1, -(-len(steps) // limits.LAW_STEPS))
    for step in steps[::stride]:
        wrong = _wrong_numbers(step)
        if wrong:
            names = sorted({name for name, _ in wrong})
            return Sign(
                since=step.step,
                numbers={"names": ", ".join(names), "count": len(wrong)},
                places=tuple(place for _, place in wrong[:SHOWN]),
                confidence=0.9,
            )
    return None


def _wrong_numbers(step: RecordedStep) -> list[tuple[str, Place]]:
    """(quantity, token) of recorded numbers that recomputing does not give."""
    if step.meta.get("rules"):  # another trainer, whose rules differ from ours
        return []
    found: list[tuple[str, Place]] = []
    for row in range(min(len(step), limits.LAW_SAMPLES)):
        sample = step.sample(row)
        try:
            tracer = Tracer(sample)
            valid = [t for t, m in enumerate(sample.mask) if m]
            half = _TOKENS // 2
            for t in dict.fromkeys(valid[:half] + valid[-half:]):
                verdicts = tracer.verdicts(t)
                place = int(step.offsets[row]) + t
                found += [(name, step.place(place)) for name, ok in verdicts.items() if not ok]
        except (TelescopeError, KeyError, ZeroDivisionError, OverflowError, ValueError):
            continue  # columns are missing, or not finite: other checks say so
    return found


@ledger_check("laws", "serious", settings=("reward.functions",))
@first_step
def score_lost(run: Curves, step: RecordedStep) -> Sign | None:
    """The scores on a response's tokens do not add up to the score of the response."""
    shaped = ("reward.normalise", "reward.clip", "reward.overlong_tokens", "reward.shift")
    if any(run.setting(key) for key in shaped) or run.setting("reward.scale") not in (None, 1):
        return None
    scores = step.rows("score")
    tokens = step.tokens_of("token_level_scores")
    paid = [float(row.sum()) for row in tokens]
    lost = [
        row
        for row, (score, given) in enumerate(zip(scores, paid, strict=False))
        if score is not None and len(tokens[row])  # an answer without tokens is not paid
        if abs(score - given) > 1e-4 * max(1.0, abs(score))
    ]
    if not lost:
        return None
    row = lost[0]
    return Sign(
        since=step.step,
        numbers={"share": len(lost) / len(step), "score": scores[row], "paid": paid[row]},
        places=(step.response_place(row, score=scores[row], paid=paid[row]),),
        confidence=0.9,
    )


@ledger_check("laws", "serious", settings=("reward.functions",))
@first_step
def score_early(run: Curves, step: RecordedStep) -> Sign | None:
    """Every score is paid on one token, and always as far before the last one, or on the first."""
    tokens = step.tokens_of("token_level_scores")
    paid = [(row, np.flatnonzero(each)) for row, each in enumerate(tokens) if each.any()]
    if len(paid) < limits.LAW_SAMPLES or any(len(at) > 1 for _, at in paid):
        return None
    written = [np.flatnonzero(mask) for mask in step.tokens_of("response_mask")]
    before_end = {int(written[row][-1] - at[0]) for row, at in paid if len(written[row])}
    is_first = all(at[0] == 0 and len(tokens[row]) > 1 for row, at in paid)
    before = before_end.pop() if len(before_end) == 1 else 0
    if not is_first and before <= 0:
        return None
    row, at = paid[0]
    place = step.place(int(step.offsets[row] + at[0]), score=float(tokens[row][at[0]]))
    return Sign(
        since=step.step,
        numbers={"count": len(paid), "before": before},
        variant="" if is_first else "before",
        places=(place,),
        confidence=0.9 if is_first else 0.8,
    )


@curve_check("laws", "warning", charts=("response/length_mean",), settings=("credit.gamma",))
def credit_fades(run: Curves) -> Sign | None:
    """γ discounts the score so much that the first tokens get next to nothing of it."""
    length = run.need("response/length_mean", least=3)
    gamma = run.setting("credit.gamma")
    if not isinstance(gamma, int | float) or gamma >= 1:
        return None
    share = float(gamma ** float(np.median(length.values)))
    if share > limits.CREDIT_LOST:
        return None
    return Sign(
        since=int(length.steps[0]),
        numbers={"gamma": gamma, "share": share, "length": length.start(3)},
        change={"credit.gamma": 1.0},
    )
