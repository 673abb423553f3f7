"""Numbers typed by hand: a TOML, JSON or CSV file becomes a Sample, or a batch of them.

The file gives any subset of what a response has:

    tokens = ["是", "的", "！"]
    score  = 1.0                     # on the last token; or `scores = [0, 0, 1]`
    values = [0.3, 0.4, 0.6]         # V(s_t): before token t
    gamma  = 1.0
    lam    = 0.95

In a CSV each column is a list, one row per token; a setting stands in the first row of its own
column. What follows from the numbers is computed by `arithmetic.fill`, so that a number that was
given as well can be checked.

Whitening takes all responses of a batch. A file gives several as tables, with what they share
outside of them, or as lists of lists:

    lam = 0.95                                  values = [[0.3, 0.4, 0.6], [0.5, 0.2]]
    [[responses]]                               score  = [1.0, 0.0]
    values = [0.3, 0.4, 0.6]
    score  = 1.0
    [[responses]]
    values = [0.5, 0.2]
    score  = 0.0

In JSON, a list of objects is a batch too. In a CSV, the column `response` says to which response a
token belongs.

An estimator that compares responses takes those with the same `group` (any text or number; without
it all are one group). Some need more: `greedy_score`, `sum_pi_squared`, `attention`, `parts` and
`part_weights`. What is missing is named.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from telescope.algorithms.definitions import ESTIMATORS, POLICY_LOSSES
from telescope.config import CHOICES
from telescope.errors import TelescopeError
from telescope.explain.already_whitened import tell_apart
from telescope.explain.groups import check_needs, compare_groups
from telescope.explain.number_files import read_content
from telescope.explain.number_names import IGNORED, SETTING_NAMES, name_of, setting_names
from telescope.explain.number_rows import rows_of
from telescope.explain.sample import ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings, value_loss_with
from telescope.explain.typed import Typed, with_common_precision
from telescope.explain.whitening import whiten_together

SMALLEST = 1e-30
LARGEST = 1e30
"""Bounds of a divisor and of any number: no product of a few of them overflows."""
DIVISORS = (
    "whiten_std",
    "lam_alpha",
    "huber_delta",
    "importance_cap",
    "reject_low",
    "reject_high",
)
"""Settings that a formula divides by."""


def read_numbers(path: str | Path) -> list[Sample]:
    """The responses that a .toml, .json or .csv file describes, with only what it gives.

    Several responses also get the μ and σ of their batch.
    """
    path = Path(path)
    data = read_content(path)
    try:
        return batch_from_numbers(data)
    except TelescopeError as error:
        raise TelescopeError(f"{path}: {error}") from None


def batch_from_numbers(data: Any) -> list[Sample]:
    """The responses that a file's content describes, whitened together."""
    batch: list[Sample] = []
    rows = rows_of(data)
    for i, row in enumerate(rows):
        try:
            batch.append(from_numbers(row))
        except TelescopeError as error:
            where = f"response {i}: " if len(rows) > 1 else ""
            raise TelescopeError(f"{where}{error}") from None
    check_needs(batch)
    compared = compare_groups(batch)
    is_given = all("advantages" in sample.columns for sample in batch)
    return whiten_together(tell_apart(compared) if is_given else compared)


def from_numbers(data: Mapping[str, Any]) -> Sample:
    """The response that these names and numbers describe, with only what they give."""
    lists, scalars = _named(data)
    settings = _settings(scalars, data)
    tokens = lists.pop("tokens", None)
    score = lists.get("token_level_scores")
    is_one_score = isinstance(score, int | float)
    if is_one_score:
        del lists["token_level_scores"]
    columns = {name: _numbers(name, value) for name, value in lists.items()}
    _check_tokens(tokens)
    length = _common_length(columns, tokens)
    mask = _mask(columns.pop("mask", [1.0] * length))
    last = max(t for t, m in enumerate(mask) if m)
    if is_one_score:
        columns["token_level_scores"] = [0.0] * length
        columns["token_level_scores"][last] = _number("score", score)
    _check(columns, scalars, mask)
    padding = {t: _held(columns, t) for t in range(last + 1, length)}
    for name, column in columns.items():
        columns[name] = [x if m else 0.0 for x, m in zip(column, mask, strict=True)]
    actor_updates = _actor_updates(columns.get("old_log_probs"), columns.pop("log_probs", None))
    predictions = columns.pop("vpreds", columns.get("values"))
    texts = [f"[{t}]" for t in range(length)] if tokens is None else [str(t) for t in tokens]
    scores = columns.get("token_level_scores")
    bootstrap = scalars.get("bootstrap", 0.0)
    return Sample(
        token_ids=list(range(length)),
        token_bytes=[text.encode("utf-8", "surrogatepass") for text in texts],
        mask=mask,
        columns=columns,
        settings=settings,
        prompt=scalars.get("prompt", ""),
        response="".join(texts),
        score=None if scores is None else math.fsum(scores),
        prompt_index=int(scalars.get("group", 0)),
        parts=scalars.get("parts", {}),
        part_weights=scalars.get("part_weights", {}),
        greedy_score=scalars.get("greedy_score"),
        truncated=scalars.get("truncated", bool(bootstrap)),
        bootstrap=bootstrap,
        whiten_mean=scalars.get("whiten_mean"),
        whiten_std=scalars.get("whiten_std"),
        actor_updates=actor_updates,
        critic_updates=[] if predictions is None else [CriticUpdate(0, 0, predictions)],
        padding=padding,
    )


def _check_tokens(tokens: Any) -> None:
    if tokens is None:
        return
    if not isinstance(tokens, list) or not all(isinstance(t, str | int) for t in tokens):
        raise TelescopeError('tokens must be a list of texts, e.g. ["是", "的"]')


def _common_length(columns: Mapping[str, list[float]], tokens: list[Any] | None) -> int:
    """The number of tokens, which all lists must have."""
    lengths = {name: len(value) for name, value in columns.items()}
    if tokens is not None:
        lengths["tokens"] = len(tokens)
    if not lengths or not max(lengths.values()):
        raise TelescopeError(
            "no token: give at least one list with a number per token, e.g. values = [0.3, 0.4]"
        )
    first, length = next(iter(lengths.items()))
    for name, n in lengths.items():
        if n != length:
            raise TelescopeError(
                f"{name} has {n} numbers and {first} has {length}: every list needs one per token"
            )
    return length


def _mask(numbers: Sequence[float]) -> list[int]:
    mask = [int(m) for m in numbers]
    if not any(mask) or any(m not in (0, 1) for m in mask):
        raise TelescopeError(
            f"mask = {mask}: give 1 for a token the policy wrote and 0 for any other, "
            "and at least one 1"
        )
    return mask


def _held(columns: Mapping[str, list[float]], t: int) -> dict[str, float]:
    """The values and rewards of slot t that are not 0."""
    return {
        name: column[t]
        for name, column in columns.items()
        if name in ("values", "token_level_rewards") and column[t]
    }


def _actor_updates(old: list[float] | None, new: list[float] | None) -> list[ActorUpdate]:
    """The update that the log-probs describe.

    Without new ones it is the first minibatch, where π is still π_old.
    """
    if old is None:
        return []
    place = -1 if new else 0
    return [ActorUpdate(place, place, old, new or old)]


def _named(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The columns and the settings of a response, under their own names."""
    lists: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    for key, value in data.items():
        if key in IGNORED:
            continue
        name = name_of(key)
        is_setting = name in SETTING_NAMES.values()
        home = scalars if is_setting else lists
        if name in home:
            raise TelescopeError(f"{name} is given twice ({key!r} is another name of it)")
        home[name] = _scalar(key, name, value) if is_setting else value
    if "clip" in scalars:
        both = scalars.pop("clip")
        scalars = {"clip_low": both, "clip_high": both} | scalars
    return lists, scalars


def _scalar(key: str, name: str, value: Any) -> Any:
    """The value of setting `name`, which the file calls `key`."""
    if name in ("whiten", "truncated", "bootstrap_truncated", "leave_one_out"):
        if str(value).lower() not in ("true", "false"):
            raise TelescopeError(f"{key} = {value!r}: use true or false")
        return str(value).lower() == "true"
    if name == "prompt":
        return str(value)
    if name in ("parts", "part_weights"):
        if not isinstance(value, dict):
            raise TelescopeError(f"{key} = {value!r}: give names and numbers, {{ answer = 1.0 }}")
        return {part: float(_number(f"{key}.{part}", x)) for part, x in value.items()}
    if value is None:
        return None
    if isinstance(value, str):
        if value.lower() in ("none", "null"):
            return None
        if name in _WORDS:
            return value
    number = _number(key, value)
    if name in DIVISORS and not SMALLEST <= number <= LARGEST:
        raise TelescopeError(
            f"{key} = {number:g}: it must lie between {SMALLEST:g} and {LARGEST:g}"
        )
    return with_common_precision([number])[0] if name in _ROUNDED else float(number)


_ROUNDED = ("whiten_mean", "whiten_std", "bootstrap")
"""Numbers that a run computes, and that may therefore be rounded. Settings are exact."""
_WORDS = (
    "estimator",
    "loss",
    "value_loss",
    "kl_kind",
    "kl_loss_kind",
    "importance",
    "importance_mode",
    "reject",
    "anchor",
    "ratio_level",
    "whiten_over",
)
"""Settings that are words, not numbers."""


def _settings(scalars: Mapping[str, Any], data: Mapping[str, Any]) -> Settings:
    """The settings among the scalars, checked by the sections of the config."""
    names = {key: value for key, value in scalars.items() if key in _SETTINGS}
    if names.get("huber_delta") is None:
        names.pop("huber_delta", None)
    else:
        names.setdefault("value_loss", value_loss_with("huber_delta"))
    estimators = list(ESTIMATORS.built_in)
    losses = [name for name, found in POLICY_LOSSES.built_in.items() if found.select is None]
    for name, choices in (("estimator", estimators), ("loss", losses)):
        if name in names and names[name] not in choices:
            raise TelescopeError(f"{name} = {names[name]!r}: use one of {', '.join(choices)}")
    try:
        settings = Settings.of(**names)
    except ValidationError as error:
        raise TelescopeError(_first_mistake(error, data)) from None
    unused = [name for name in names if name not in settings.by_name()]
    if unused:
        raise TelescopeError(
            f"{unused[0]} does nothing with these algorithms: {_owners(unused[0])}"
        )
    return settings


_SETTINGS = {*setting_names(), "temperature", "value_loss"}


def _owners(name: str) -> str:
    """Which algorithms have this setting."""
    for choice in CHOICES:
        if name in choice.owners():
            return f"it belongs to {choice.name} = {', '.join(choice.owners()[name])}"
    return "leave it out"


def _first_mistake(error: ValidationError, data: Mapping[str, Any]) -> str:
    """What is wrong with the first setting, under the name that the file gives it."""
    detail = error.errors()[0]
    message = detail["msg"].removeprefix("Value error, ")
    if not detail["loc"]:
        return message
    name = str(detail["loc"][0])
    names = (name, "clip") if name in ("clip_low", "clip_high") else (name,)
    key = next((key for key in data if SETTING_NAMES.get(key) in names), name)
    value = detail["input"]
    shown = f"{value:g}" if isinstance(value, float) else repr(value)
    return f"{key} = {shown}: {message[0].lower()}{message[1:]}"


def _numbers(name: str, value: Any) -> list[float]:
    if not isinstance(value, list):
        raise TelescopeError(f"{name} = {value!r}: give a list with one number per token")
    numbers = []
    for t, x in enumerate(value):
        is_flag = name == "mask" and isinstance(x, bool)
        numbers.append(float(x) if is_flag else _number(f"{name}[{t}]", x))
    is_reward = name in ("token_level_scores", "token_level_rewards")
    return with_common_precision(numbers, whole_are_exact=is_reward)


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise TelescopeError(f"{name} = {value!r} is not a number")
    if not -LARGEST <= value <= LARGEST:  # it may have too many digits to be printed
        raise TelescopeError(
            f"{name} is too large: give numbers between −{LARGEST:g} and {LARGEST:g}"
        )
    return value if isinstance(value, Typed) else float(value)


def _check(columns: Mapping[str, list[float]], scalars: Mapping[str, Any], mask: list[int]) -> None:
    """Raises the first mistake that shows only when several of the numbers are seen together."""
    for name in ("old_log_probs", "log_probs", "ref_log_prob", "rollout_log_probs"):
        for t, x in enumerate(columns.get(name, ())):
            if mask[t] and x > 0:
                place = f"{name}[{t}]"
                raise TelescopeError(f"{place} = {x:g}: a log-probability is at most 0")
    for t, x in enumerate(columns.get("token_level_scores", ())):
        if x and not mask[t]:
            raise TelescopeError(
                f"a score of {x:g} on token {t}, which the policy did not write (mask 0): "
                "put it on one with mask 1"
            )
    if "log_probs" in columns and "old_log_probs" not in columns:
        raise TelescopeError(
            "new log-probs need the old ones too (old_log_probs): the ratio is exp(new − old)"
        )
    if ("whiten_mean" in scalars) != ("whiten_std" in scalars):
        raise TelescopeError("give whiten_mean and whiten_std together, or neither")
    has_kl = "kl" in columns or {"old_log_probs", "ref_log_prob"} <= columns.keys()
    needs_rewards = "token_level_scores" in columns and "token_level_rewards" not in columns
    if scalars.get("kl_coef") and needs_rewards and not has_kl:
        raise TelescopeError(
            f"beta = {scalars['kl_coef']:g} needs the kl of each token, "
            "or old_log_probs and ref_log_prob"
        )
