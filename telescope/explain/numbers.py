"""Numbers typed by hand: a TOML, JSON or CSV file with any subset of what a response has becomes a Sample, several of them a batch.

    tokens = ["是", "的", "！"]
    score  = 1.0                     # on the last token; or `scores = [0, 0, 1]`
    values = [0.3, 0.4, 0.6]         # V(s_t): before token t
    gamma  = 1.0
    lam    = 0.95

In a CSV each column is a list, one row per token, and a setting stands in the first row of its own column. What follows
from the numbers is left to `trace.fill`, so that a number that was given as well is checked.

Whitening takes all responses of a batch. Several are given as tables, what they share beside them, or as rows of every list:

    lam = 0.95                                  values = [[0.3, 0.4, 0.6], [0.5, 0.2]]
    [[responses]]                               score  = [1.0, 0.0]
    values = [0.3, 0.4, 0.6]
    score  = 1.0                                In JSON also as a list of objects; in a CSV the column `response`
    [[responses]]                               says which one a token belongs to.
    values = [0.5, 0.2]
    score  = 0.0
"""

from __future__ import annotations

import csv
import difflib
import io
import json
import math
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.explain.sample import PER_TOKEN, ActorUpdate, CriticUpdate, Sample, Settings
from telescope.explain.whitening import whiten_together

LISTS = {
    **{name: name for name in (*PER_TOKEN, "tokens", "mask", "log_probs", "vpreds")},
    "scores": "token_level_scores", "score": "token_level_scores", "rewards": "token_level_rewards", "reward": "token_level_rewards",
    "r": "token_level_rewards", "V": "values", "old": "old_log_probs", "old_log_prob": "old_log_probs", "new": "log_probs",
    "new_log_probs": "log_probs", "new_log_prob": "log_probs", "log_prob": "log_probs", "ref": "ref_log_prob",
    "ref_log_probs": "ref_log_prob", "kld": "kl", "delta": "deltas", "A": "advantages", "advantages_raw": "advantages",
    "advantage": "advantages", "R": "returns", "advantages_whitened": "whitened", "new_values": "vpreds", "value": "values",
    "response_mask": "mask", "loss_mask": "mask", "info_mask": "mask",
}  # fmt: skip
SCALARS = {
    **{name: name for name in Settings.__dataclass_fields__},
    **{name: name for name in ("whiten_mean", "whiten_std", "bootstrap", "truncated", "prompt", "clip")},
    "γ": "gamma", "lambda": "lam", "λ": "lam", "beta": "kl_coef", "β": "kl_coef", "kl_type": "kl_kind", "eps": "clip", "ε": "clip",
    "epsilon": "clip", "cliprange": "clip", "clip_ratio": "clip", "cliprange_value": "clip_value", "clip_ratio_c": "dual_clip",
    "μ": "whiten_mean", "mu": "whiten_mean", "mean": "whiten_mean", "σ": "whiten_std", "sigma": "whiten_std", "std": "whiten_std",
}  # fmt: skip
_BARE_POINT = re.compile(
    r""" "(?:\\.|[^"\\])*" | '[^']*' | \#.* | (?<![\w.])\.(?=\d) """, re.VERBOSE
)
"""The point of .3; texts and comments are matched too, so that none is found inside them."""
IGNORED = ("id", "kind", "description", "expected")
CHOICES = {
    "estimator": ("gae", "monte_carlo", "td0"),
    "loss": ("clip", "cpi"),
    "importance": ("off", "token", "sequence"),
    "reject": ("off", "token", "sequence", "geometric"),
    **dict.fromkeys(
        ("kl_kind", "kl_loss_kind"), ("k1", "kl", "abs", "k2", "mse", "k3", "low_var_kl")
    ),
}
OPTIONAL = ("clip_value", "dual_clip", "huber_delta", "lam_alpha", "lam_critic")
"""Settings that may be none."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Of what is divided by, and of any number: so far from the ends of a float that no product of a few of them leaves it."""
RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(("gamma", "lam", "lam_critic", "clip", "clip_low"), (0.0, 1.0)),
    **dict.fromkeys(
        ("kl_coef", "kl_loss_coef", "clip_high", "clip_value", "temperature"), (0.0, LARGEST)
    ),
    **dict.fromkeys(
        ("whiten_std", "lam_alpha", "huber_delta", "importance_cap", "reject_low", "reject_high"),
        (SMALLEST, LARGEST),
    ),
    "dual_clip": (1.0, LARGEST),
    "log-prob": (-math.inf, 0.0),
}


def read_numbers(path: str | Path) -> list[Sample]:
    """The responses that a .toml, .json or .csv file describes, with only what it gives; of several, μ and σ of their batch too."""
    path = Path(path)
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise TelescopeError(
            f"cannot read {path} ({error.strerror}): give a .toml, .json or .csv file"
        ) from None
    except UnicodeDecodeError:
        raise TelescopeError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    readers: dict[str, Callable[[str], Any]] = {
        ".toml": tomllib.loads,
        ".json": json.loads,
        ".csv": _csv,
    }
    if path.suffix.lower() not in readers:
        raise TelescopeError(f"{path}: the name must end in .toml, .json or .csv")
    try:
        data = _read(readers[path.suffix.lower()], text)
    except TelescopeError as error:
        raise TelescopeError(f"{path}: {error}") from None
    except (ValueError, RecursionError) as error:
        raise TelescopeError(f"{path} is not valid {path.suffix[1:].upper()}: {error}") from None
    try:
        return batch_from_numbers(data)
    except TelescopeError as error:
        raise TelescopeError(f"{path}: {error}") from None


def _read(reader: Callable[[str], Any], text: str) -> Any:
    """TOML and JSON want a digit before the point; where that is all that is wrong, .3 is read as 0.3."""
    try:
        return reader(text)
    except ValueError:
        filled = _BARE_POINT.sub(lambda found: "0." if found[0] == "." else found[0], text)
        if filled == text:
            raise
    try:
        return reader(filled)
    except ValueError as error:
        raise ValueError(f"{error} (with every .3 read as 0.3)") from None


def batch_from_numbers(data: Any) -> list[Sample]:
    batch, rows = list[Sample](), _responses(data)
    for i, row in enumerate(rows):
        try:
            batch.append(from_numbers(row))
        except TelescopeError as error:
            raise TelescopeError(
                f"response {i}: {error}" if len(rows) > 1 else str(error)
            ) from None
    return whiten_together(batch)


def _responses(data: Any) -> list[dict[str, Any]]:
    """The names and numbers of each response, with those that all share."""
    data = {"responses": data} if isinstance(data, list) else data
    rows = data.get("responses", [data]) if isinstance(data, dict) else [data]
    if not isinstance(rows, list) or not rows:
        raise TelescopeError(
            'no response: give at least one, e.g. [{"values": [0.3, 0.4]}, {"values": [0.1]}]'
        )
    for row in rows:
        if not isinstance(row, dict):
            raise TelescopeError(
                f'a response is names and numbers, e.g. {{"values": [0.3, 0.4]}}, not {row!r}'
            )
    if "responses" in data:
        shared = {key: value for key, value in data.items() if key != "responses"}
        return [{**shared, **row} for row in rows]
    lists = {key: value for key, value in data.items() if isinstance(value, list)}
    if not any(isinstance(x, list) for value in lists.values() for x in value):
        return rows
    first, count = next((key, len(value)) for key, value in lists.items())
    for key, value in lists.items():
        if len(value) != count:
            raise TelescopeError(
                f"{key} has {len(value)} rows and {first} has {count}: every list needs one per response"
            )
    return [
        {key: value[b] if key in lists else value for key, value in data.items()}
        for b in range(count)
    ]


def from_numbers(data: Mapping[str, Any]) -> Sample:
    lists, scalars = _named(data)
    tokens = lists.pop("tokens", None)
    score = lists.get("token_level_scores")
    if isinstance(score, int | float):
        del lists["token_level_scores"]
    columns = {name: _numbers(name, value) for name, value in lists.items()}
    if tokens is not None and not (
        isinstance(tokens, list) and all(isinstance(t, str | int) for t in tokens)
    ):
        raise TelescopeError('tokens must be a list of texts, e.g. ["是", "的"]')
    lengths = {name: len(value) for name, value in columns.items()} | (
        {} if tokens is None else {"tokens": len(tokens)}
    )
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
    mask = [int(m) for m in columns.pop("mask", [1.0] * length)]
    if not any(mask) or any(m not in (0, 1) for m in mask):
        raise TelescopeError(
            f"mask = {mask}: 1 for a token the policy wrote, 0 for one it did not, and at least one 1"
        )
    if isinstance(score, int | float):
        last = max(t for t, m in enumerate(mask) if m)
        columns["token_level_scores"] = [
            _number("score", score) if t == last else 0.0 for t in range(length)
        ]
    _check(columns, scalars, mask)
    end = max(t for t, m in enumerate(mask) if m) + 1
    held = {
        name: column
        for name, column in columns.items()
        if name in ("values", "token_level_rewards")
    }
    padding = {
        t: {name: column[t] for name, column in held.items() if column[t]}
        for t in range(end, length)
    }
    columns = {
        name: [x if m else 0.0 for x, m in zip(value, mask, strict=True)]
        for name, value in columns.items()
    }
    new, predictions = columns.pop("log_probs", None), columns.pop("vpreds", columns.get("values"))
    old, scores = columns.get("old_log_probs"), columns.get("token_level_scores")
    texts = [f"[{t}]" for t in range(length)] if tokens is None else [str(t) for t in tokens]
    settings = {name: scalars[name] for name in Settings.__dataclass_fields__ if name in scalars}
    bootstrap, place = scalars.get("bootstrap", 0.0), -1 if new else 0
    return Sample(
        token_ids=list(range(length)),
        token_bytes=[text.encode("utf-8", "surrogatepass") for text in texts],
        mask=mask,
        columns=columns,
        settings=Settings(**settings),
        prompt=scalars.get("prompt", ""),
        response="".join(texts),
        score=None if scores is None else math.fsum(scores),
        truncated=scalars.get("truncated", bool(bootstrap)),
        bootstrap=bootstrap,
        whiten_mean=scalars.get("whiten_mean"),
        whiten_std=scalars.get("whiten_std"),
        # without numbers of an update: its first minibatch, where π is still π_old and the critic still says V
        actor_updates=[]
        if old is None
        else [ActorUpdate(place, place, old, new or old, [], [], [], [])],
        critic_updates=[] if predictions is None else [CriticUpdate(0, 0, predictions, [], [])],
        padding=padding,
    )


def _named(data: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    lists: dict[str, Any] = {}
    scalars: dict[str, Any] = {}
    for key, value in data.items():
        if key in IGNORED:
            continue
        known = {**LISTS, **SCALARS}
        name = known.get(key) or known.get(key.lower())
        if name is None:
            near = difflib.get_close_matches(
                key, list(known.values()), 1
            ) or difflib.get_close_matches(key, known, 1)
            raise TelescopeError(
                f"unknown name {key!r}"
                + (f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}")
            )
        home = scalars if name in SCALARS.values() else lists
        if name in home:
            raise TelescopeError(f"{name} is given twice ({key!r} is another name of it)")
        home[name] = _scalar(key, name, value) if home is scalars else value
    if "clip" in scalars:
        both = scalars.pop("clip")
        scalars = {"clip_low": both, "clip_high": both} | scalars
    return lists, scalars


def _scalar(key: str, name: str, value: Any) -> Any:
    if name in ("whiten", "truncated"):
        if str(value).lower() not in ("true", "false"):
            raise TelescopeError(f"{key} = {value!r}: use true or false")
        return str(value).lower() == "true"
    if name == "prompt":
        return str(value)
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise TelescopeError(f"{key} = {value!r}: use one of {', '.join(CHOICES[name])}")
        return value
    if name in OPTIONAL and str(value).lower() in ("none", "null"):
        return None
    return _in_range(key, name, _number(key, value))


def _in_range(key: str, name: str, x: float) -> float:
    low, high = RANGES.get(name, (-math.inf, math.inf))
    if not low <= x <= high:
        raise TelescopeError(f"{key} = {x:g}: it must lie between {low:g} and {high:g}")
    return x


def _numbers(name: str, value: Any) -> list[float]:
    if not isinstance(value, list):
        raise TelescopeError(f"{name} = {value!r}: give a list with one number per token")
    return [
        float(x) if name == "mask" and isinstance(x, bool) else _number(f"{name}[{t}]", x)
        for t, x in enumerate(value)
    ]


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise TelescopeError(f"{name} = {value!r} is not a number")
    if not -LARGEST <= value <= LARGEST:  # it may have too many digits to be printed
        raise TelescopeError(
            f"{name} is too large: give numbers between −{LARGEST:g} and {LARGEST:g}"
        )
    return float(value)


def _check(columns: Mapping[str, list[float]], scalars: Mapping[str, Any], mask: list[int]) -> None:
    for name in ("old_log_probs", "log_probs", "ref_log_prob", "rollout_log_probs"):
        for t, x in enumerate(columns.get(name, ())):
            if mask[t]:
                _in_range(f"{name}[{t}]", "log-prob", x)
    for t, x in enumerate(columns.get("token_level_scores", ())):
        if x and not mask[t]:
            raise TelescopeError(
                f"a score of {x:g} on token {t}, which the policy did not write (mask 0): put it on one with mask 1"
            )
    if "log_probs" in columns and "old_log_probs" not in columns:
        raise TelescopeError(
            "new log-probs need the old ones too (old_log_probs): the ratio is exp(new − old)"
        )
    if ("whiten_mean" in scalars) != ("whiten_std" in scalars):
        raise TelescopeError("give whiten_mean and whiten_std together, or neither")
    low, high = (
        scalars.get(name, getattr(Settings, name)) for name in ("reject_low", "reject_high")
    )
    if low >= high:
        raise TelescopeError(
            f"reject_low = {low:g} keeps nothing below reject_high = {high:g}: give a smaller one"
        )
    has_kl = "kl" in columns or {"old_log_probs", "ref_log_prob"} <= columns.keys()
    if (
        scalars.get("kl_coef")
        and "token_level_scores" in columns
        and "token_level_rewards" not in columns
        and not has_kl
    ):
        raise TelescopeError(
            f"beta = {scalars['kl_coef']:g} needs the kl of each token, or old_log_probs and ref_log_prob"
        )


def _csv(text: str) -> dict[str, Any]:
    """One row per token; where there is a column `response`, rows with the same entry are one response."""
    header, *rows = list(csv.reader(io.StringIO(text, newline=""))) or [[]]
    names, rows = [key.strip() for key in header], [row for row in rows if row]
    if any(len(row) != len(header) for row in rows):
        raise TelescopeError(
            f"the header has {len(header)} names; every row needs as many cells (they may be empty)"
        )
    if "response" not in names:
        return _columns(names, rows, rows)
    at, groups = names.index("response"), dict[str, list[list[str]]]()
    for row in rows:
        groups.setdefault(row.pop(at).strip(), []).append(row)
    del names[at]
    return {"responses": [_columns(names, group, rows) for group in groups.values()]}


def _columns(
    names: Sequence[str], rows: Sequence[Sequence[str]], every: Sequence[Sequence[str]]
) -> dict[str, Any]:
    """Columns of cells; numbers as numbers. An empty cell is a 0 among scores; a setting stands in these rows, else in any of `every`."""
    out: dict[str, Any] = {}
    for column, key in enumerate(names):
        cells = [row[column] for row in rows]
        name = LISTS.get(key) or LISTS.get(key.lower())
        if name == "tokens":
            out[key] = cells
        elif name is not None:
            out[key] = [
                _cell(cell.strip() or ("0" if name == "token_level_scores" else ""))
                for cell in cells
            ]
        else:
            out[key] = _cell(
                next(
                    (
                        cell.strip()
                        for cell in (*cells, *(row[column] for row in every))
                        if cell.strip()
                    ),
                    "",
                )
            )
    return out


def _cell(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text
