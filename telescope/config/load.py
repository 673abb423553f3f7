"""From files and command lines to a `Config`, and back to TOML. Mistakes become one line each."""

from __future__ import annotations

import contextlib
import copy
import json
import tomllib
import types
import typing
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from telescope.algorithms.definitions import ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES
from telescope.algorithms.definitions.registry import Registry
from telescope.config.checks import default_of
from telescope.config.code import check_trusted
from telescope.config.paths import beside_recipe, check_ordinary
from telescope.config.recipes import find_recipe
from telescope.config.sections import Config, EvalSetConfig, Section, kl_place
from telescope.config.suggest import advice, leaves, misspelt
from telescope.errors import TelescopeError

RENAMED = {
    "critic.head_start": "critic_warmup",
    "rollout.ahead": "rollout.one_step_off_policy",
    "rollout.refill": "rollout.dynamic_sampling",
    "rollout.cache_share": "rollout.gpu_memory_utilization",
    "ray.shards": "ray.fsdp_size",
    "eval.right": "eval.correct_score",
}
"""Settings of 0.1 under another name. A saved run is read with them, a recipe is not."""

_TABLES = ("weights", "options", "headers", "environment_options", "sets")
"""Settings that are tables themselves."""
_CHECKSUM = "# crc32 of the lines below: "


@dataclass(frozen=True)
class Choice:
    """A setting that chooses a definition, which has settings of its own."""

    section: str
    name: str
    registry: Registry[Any]

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}"

    @property
    def default(self) -> str:
        section = Config.model_fields[self.section].default
        return str(getattr(section, self.name))

    def settings_of(self, definition: str) -> set[str]:
        """Names of the settings that this definition has."""
        try:
            return set(self.registry[definition].settings.model_fields)
        except (LookupError, TypeError):
            return set()

    def owners(self) -> dict[str, list[str]]:
        """Setting -> the definitions that have it."""
        found: dict[str, list[str]] = {}
        for name in self.registry.built_in:
            for setting in self.registry.built_in[name].settings.model_fields:
                found.setdefault(setting, []).append(name)
        return found


CHOICES = (
    Choice("credit", "estimator", ESTIMATORS),
    Choice("actor", "loss", POLICY_LOSSES),
    Choice("critic", "loss", VALUE_LOSSES),
)


# ---- reading ----


def load_config(
    recipe: Path | str | None = None, overrides: Sequence[tuple[str, Any]] = ()
) -> Config:
    """Defaults, then the recipe (a path, or the name of a shipped one), then the overrides.

    An override is a `section.key` and its value. Relative paths in the recipe are looked up beside
    it first, then in the working folder.
    """
    recipe = None if recipe is None else find_recipe(recipe)
    data = {} if recipe is None else beside_recipe(checked_toml(recipe), recipe.parent)
    return _with_overrides(data, overrides, recipe)


def load_saved_config(
    recipe: Path,
    overrides: Sequence[tuple[str, str]] = (),
    *,
    trusted: bool = False,
    functions: bool = True,
) -> Config:
    """The config.toml of a run, also of a run that an older version made.

    Reading it imports the estimator and losses that it names. So unless it is `trusted`, it may
    name only code that this user has trained with; without `functions`, the reward's may be others.
    """
    data = checked_toml(recipe)
    if not data:
        raise TelescopeError(f"{recipe} is empty: the run cannot be read without its settings")
    if not trusted:
        check_trusted(recipe, data, [key for key, _ in overrides], functions=functions)
    for old, new in RENAMED.items():
        _move(data, old, new)
    for choice in CHOICES:
        _drop_foreign_settings(data, choice)
    return _with_overrides(data, overrides, recipe)


def _with_overrides(
    data: dict[str, Any], overrides: Sequence[tuple[str, Any]], recipe: Path | None
) -> Config:
    typed: dict[str, Any] = {}
    for key, value in overrides:
        _set(typed, key, str(value), data)  # in Python a number is given as such
    return validate(merge(data, typed), recipe, [key for key, _ in overrides])


def merge(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `changes` on top, section by section.

    A change of algorithm takes the settings of the former algorithm away: they were chosen for it.
    """
    merged = {**data}
    for section, value in changes.items():
        if not isinstance(value, dict):
            merged[section] = value
            continue
        before = data.get(section, {})
        if not isinstance(before, dict):
            raise TelescopeError(f"`{section}` is not a section: it is {before!r}")
        merged[section] = {**before, **value}
    for choice in CHOICES:
        before = data.get(choice.section, {})
        after = changes.get(choice.section, {})
        if not isinstance(after, dict) or not isinstance(before, dict) or choice.name not in after:
            continue
        was = before.get(choice.name, choice.default)
        foreign = choice.settings_of(was) - choice.settings_of(after[choice.name])
        if choice.name == "estimator" and kl_place(was) != kl_place(after[choice.name]):
            foreign |= {"kl_coef", "kl_target"}
        for name in foreign - set(after):
            merged[choice.section].pop(name, None)
    return merged


def checked_toml(recipe: Path) -> dict[str, Any]:
    """What a recipe says. The config.toml of a run begins with a checksum, which must be right."""
    try:
        if recipe.name in ("config.toml", "watched.toml"):  # of a run, which may come from anybody
            check_ordinary(recipe)
        text = recipe.read_bytes().decode()
        first, _, settings = text.partition("\n")
        checksum = first.removeprefix(_CHECKSUM)
        if checksum not in (first, str(zlib.crc32(settings.encode()))):
            raise TelescopeError(
                f"{recipe} is not what was written (its checksum differs): if you changed it "
                "yourself, remove its first line; else it is damaged"
            )
        return tomllib.loads(text)
    except OSError as error:
        raise _no_recipe(recipe, error.strerror or str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TelescopeError(f"{recipe} is not valid TOML: {error}") from None
    except RecursionError:
        raise TelescopeError(f"{recipe} is not valid TOML: it is nested too deeply") from None


def _no_recipe(given: Path, why: str) -> TelescopeError:
    saved = given / "config.toml"
    places = (given / "recipe.toml", given.with_name(f"{given.name}.toml"))
    named = next((place for place in places if place.is_file()), None)
    if saved.is_file():
        remedy = f"it is a run: continue it with `telescope train {saved} --resume`"
    elif named is not None:
        remedy = f"did you mean `{named}`?"
    else:
        remedy = "give the path of a .toml file, or a name of `telescope recipes`"
    return TelescopeError(f"no recipe {given} ({why}): {remedy}")


def _move(data: dict[str, Any], old: str, new: str) -> None:
    section, _, name = old.rpartition(".")
    values = data.get(section)
    if not isinstance(values, dict) or name not in values:
        return
    value = values.pop(name)
    target, _, new_name = new.rpartition(".")
    home = data.setdefault(target, {}) if target else data
    home.setdefault(new_name, value)


def _drop_foreign_settings(data: dict[str, Any], choice: Choice) -> None:
    """Drops settings of other algorithms: version 0.1 wrote those of all of them."""
    section = data.get(choice.section)
    if not isinstance(section, dict):
        return  # validation says so
    own = choice.settings_of(section.get(choice.name, choice.default))
    for name in choice.owners():
        if name in section and name not in own:
            del section[name]


def _set(data: dict[str, Any], key: str, text: str, recipe: Mapping[str, Any]) -> None:
    """Reads a command-line value as TOML (1e-6, true, [1, 2]) or as JSON, else as text.

    A key inside of a table (`reward.weights.short`) leaves the table's other keys as in the recipe.
    """
    value: Any = text
    if text.startswith(("{", "[")):
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(text)
    with contextlib.suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"x = {text}")["x"]
    is_of_set = key.startswith("eval.sets.") and key.count(".") == 3  # eval.sets.NAME.files
    known = fields(EvalSetConfig, f"{key.rpartition('.')[0]}.") if is_of_set else fields()
    kind = {name: kind for name, kind, _, _ in known}.get(key, "")
    if kind.startswith("list") and not isinstance(value, list):
        value = [item for item in text.split(",") if item and item != "none"]
    elif kind.startswith("str") or any(key == choice.key for choice in CHOICES):
        value = text
    *sections, last = key.split(".")
    before: Any = recipe
    for depth, section in enumerate(sections):
        before = before.get(section) if isinstance(before, Mapping) else None
        kept = before if depth and isinstance(before, Mapping) else {}
        data = data.setdefault(section, copy.deepcopy(kept))
        if not isinstance(data, dict):
            raise TelescopeError(f"--{key}: `{section}` is not a section")
    data[last] = value


# ---- mistakes ----


def validate(data: dict[str, Any], recipe: Path | None = None, given: Sequence[str] = ()) -> Config:
    """The config, or an error that names every mistake; `given` are the command line's keys."""
    try:
        return Config.model_validate(data)
    except ValidationError as error:
        raise refusal(error, data, recipe, given) from None


def refusal(
    error: ValidationError,
    data: Mapping[str, Any],
    recipe: Path | None = None,
    given: Sequence[str] = (),
) -> TelescopeError:
    """An error that names every mistake in one line, with its remedy."""
    return TelescopeError("; ".join(_mistakes(error, data, recipe, given)))


def _mistakes(
    error: ValidationError, data: Mapping[str, Any], recipe: Path | None, given: Sequence[str]
) -> Iterator[str]:
    known = {name: kind for name, kind, *_ in fields()}
    found: dict[tuple[str, bool], list[Any]] = {}
    for detail in error.errors():
        # Alternatives of one setting (a number or a word) are one mistake.
        key = _setting_at([str(part) for part in detail["loc"]], known)
        found.setdefault((key, detail["type"] == "extra_forbidden"), []).append(detail)
    for (key, is_unknown), details in found.items():
        place = key.rpartition(".")[0] if details[0]["type"] == "missing" else key
        typed = any(_overlap(name, place) for name in given)
        source = "command line" if typed else str(recipe or "config")
        if is_unknown:
            for said in _unknown(key, details[0]["input"], data):
                yield f"{source}: {said}"
            continue
        messages = [detail["msg"].removeprefix("Value error, ") for detail in details]
        if details[0]["type"] == "dict_type":
            messages = [_table_of(key, typed=typed)]
        elif details[0]["type"] == "list_type":
            messages = ["input should be a list, in brackets"]
        if not key:
            yield messages[0] if given else f"{recipe or 'config'}: {messages[0]}"
        elif details[0]["type"] == "value_error" and "." not in key and key in Config.model_fields:
            yield messages[0] if typed else f"{source}: {messages[0]}"
        elif details[0]["type"] == "missing":
            yield f"{source}: {key} is missing"
        else:
            alternatives = ", or ".join(text[0].lower() + text[1:] for text in messages)
            yield f"{source}: {key} = {details[0]['input']!r}: {alternatives}"


def with_suggestions(error: ValidationError) -> ValidationError:
    """The same error; an unknown setting is named with the one that was probably meant."""
    known = {name: description for name, _, _, description in fields()}
    details = []
    for detail in error.errors():
        kind: Any = detail["type"]
        if kind == "extra_forbidden":
            key = ".".join(str(part) for part in detail["loc"])
            kind = PydanticCustomError(kind, f"no setting `{key}`; {advice(key, known)}")
        changed = InitErrorDetails(type=kind, loc=detail["loc"], input=detail["input"])
        details.append(changed | {"ctx": detail["ctx"]} if "ctx" in detail else changed)
    return ValidationError.from_exception_data(error.title, details)


def _setting_at(parts: Sequence[str], known: Mapping[str, str]) -> str:
    """The setting, or the key inside of a table; without what pydantic adds for alternatives."""
    whole = ".".join(parts)
    for length in range(len(parts), 0, -1):
        name = ".".join(parts[:length])
        if name in known:
            return whole if known[name].startswith("dict") else name
    return whole


def _table_of(key: str, *, typed: bool) -> str:
    """How a table is written."""
    if typed:
        return f"input should be a table, --{key}.NAME VALUE or --{key} '{{\"NAME\": VALUE}}'"
    return "input should be a table, {NAME = VALUE}"


def _overlap(name: str, key: str) -> bool:
    return name == key or name.startswith(key + ".") or key.startswith(name + ".")


def _unknown(key: str, value: Any, data: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a setting that does not exist, or not for the chosen algorithm."""
    if key in RENAMED:
        yield f"no setting `{key}`: it is called `{RENAMED[key]}` now"
        return
    if key.startswith("eval.sets."):
        yield f"no setting `{key}`: a set has {', '.join(EvalSetConfig.model_fields)}"
        return
    section, _, name = key.partition(".")
    for choice in CHOICES:
        owners = choice.owners().get(name)
        if choice.section == section and owners:
            chosen = data.get(section, {}).get(choice.name, choice.default)
            yield (
                f"{key} = {value} does nothing with {choice.key} = {chosen!r}: "
                f"it belongs to {', '.join(owners)}"
            )
            return
    known = {name: description for name, _, _, description in fields()}
    # A section that is not one of ours, misspelt, has the names of another trainer.
    is_misspelt = "." not in key and misspelt(key, known)
    for leaf in [key] if is_misspelt else leaves(key, value):
        yield f"no setting `{leaf}`; {advice(leaf, known)}"


# ---- listing, comparing, writing ----


def fields(
    section: type[Section] = Config, prefix: str = ""
) -> Iterator[tuple[str, str, Any, str]]:
    """(dotted key, type, default, description) of every setting, for the help and the docs."""
    for name, info in section.model_fields.items():
        kind = _plain_type(info.annotation)
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from fields(kind, f"{prefix}{name}.")
            for choice in CHOICES:
                if choice.section == name and not prefix:
                    yield from _fields_of_definitions(choice)
        else:
            key = f"{prefix}{name}"
            yield key, _names_of(key) or _type_name(kind), info.default, info.description or ""


def _names_of(key: str) -> str:
    """The names that a choice of algorithm may have; empty for any other setting."""
    for choice in CHOICES:
        if choice.key == key:
            return "|".join([*choice.registry, "FILE.py:NAME"])
    return ""


def _fields_of_definitions(choice: Choice) -> Iterator[tuple[str, str, Any, str]]:
    """Settings of the built-in definitions, each with the names of those that have it."""
    for name, owners in choice.owners().items():
        infos = [choice.registry.built_in[owner].settings.model_fields[name] for owner in owners]
        by_text: dict[str, list[str]] = {}
        for owner, info in zip(owners, infos, strict=True):
            by_text.setdefault(info.description or "", []).append(owner)
        described = "; ".join(f"{', '.join(who)}: {text}" for text, who in by_text.items())
        kind = _type_name(infos[0].annotation)
        yield f"{choice.section}.{name}", kind, infos[0].default, described


def changes(old: Config, new: Config) -> list[str]:
    """What differs, as 'actor.lr: 1e-06 → 1e-05'.

    Another algorithm brings settings of its own; they are listed only where they were changed.
    """
    before = dict(flat(old.model_dump()))
    after = dict(flat(new.model_dump()))
    found = []
    for key, value in after.items():
        was = before[key] if key in before else default_of(new, key)
        if was != value:
            found.append(f"{key}: {was} → {value}")
    return found


def to_saved_toml(config: Config) -> str:
    """The config as a run's folder holds it: with a checksum as its first line."""
    text = to_toml(config)
    return f"{_CHECKSUM}{zlib.crc32(text.encode())}\n{text}"


def to_toml(config: Config) -> str:
    return tomli_w.dumps(_without_none(config.model_dump()))


def _without_none(value: Any) -> Any:
    """TOML has no null: the word "none" stands for it."""
    if value is None:
        return "none"
    if isinstance(value, dict):
        return {key: _without_none(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_none(inner) for inner in value]
    return value


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by dotted key, from nested tables."""
    for key, value in data.items():
        if isinstance(value, Mapping) and key not in _TABLES:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _plain_type(kind: Any) -> Any:
    """The type without what is annotated to it."""
    while typing.get_origin(kind) is Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _type_name(kind: Any) -> str:
    kind = _plain_type(kind)
    origin = typing.get_origin(kind)
    args = typing.get_args(kind)
    if origin is Literal:
        return "|".join(str(arg) for arg in args)
    if origin in (types.UnionType, typing.Union):
        return "|".join("none" if arg is type(None) else _type_name(arg) for arg in args)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(_type_name(arg) for arg in args)}]"
    return str(kind.__name__)


# ---- a short version of a run ----


def smoke(config: Config) -> Config:
    """The same job cut down to 2 steps of 8 prompts, to see that it works."""
    rollout = config.rollout
    cut: dict[str, Any] = {
        "name": f"{config.name}-smoke",
        "steps": min(config.steps, 2),
        "critic_warmup": min(config.critic_warmup, 1),
        "rollout": {
            "batch_size": min(rollout.batch_size, 8),
            "n": min(rollout.n, 2),
            "max_response_tokens": min(rollout.max_response_tokens, 16),
        },
        "data": {"size": min(config.data.size, 64)} if config.data.task else {},
        "warm_start": {"steps": 2, "batch_size": 8} if config.warm_start.files else {},
        "actor": {"minibatches": min(config.actor.minibatches, 2)},
        "critic": {"minibatches": min(config.critic.minibatches, 2)},
        "reward": {"overlong_tokens": min(config.reward.overlong_tokens, 8)},
        "eval": {
            "samples": 8,
            "prompts": min(config.eval.prompts or 8, 8),
            "k": 0,
            "n": None,
            "answer": None,
            "every": 0,
            "best": None,
            "best_mode": "max",
            "patience": 0,
            "sets": _smoke_sets(config),
        },
        "log": {"every": 1} | ({"samples_every": 1} if config.log.trackers else {}),
    }
    return validate(merge(config.model_dump(), cut))


def _smoke_sets(config: Config) -> dict[str, Any]:
    """The evaluation sets with at most 8 prompts each."""
    cut = {}
    for name, chosen in config.eval.sets.items():
        cut[name] = {**chosen.model_dump(), "prompts": min(chosen.prompts or 8, 8)}
    return cut
