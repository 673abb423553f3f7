"""Watches verl 0.9 without a change to it.

    TELESCOPE_WATCH=runs/my-verl-run python -m verl.trainer.main_ppo …

verl imports the entry points of the group `verl.plugins`, and this module is one. Where the
variable is set, it listens to the trainer: at the end of a step it reads the batch, which verl is
about to discard. `TELESCOPE_WATCH_SAMPLES` and `TELESCOPE_WATCH_EVERY` set how much is kept.

verl's rows come in the order in which they were finished, or by length: the first ones would be
short answers. So they are put in the order of their prompts' random uids.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from telescope.algorithms.definitions import ESTIMATORS
from telescope.algorithms.definitions.base import Actions, Needs
from telescope.explain.settings import Settings
from telescope.peers.hooks import (
    VARIABLE,
    kept,
    listen,
    numbers,
    options_of_environment,
    variables_of_workers,
)
from telescope.peers.on_import import on_import
from telescope.peers.recorder import Recorder

_log = logging.getLogger("telescope")

V1 = "verl.trainer.ppo.v1.trainer_base"
LEGACY = "verl.trainer.ppo.ray_trainer"
LAUNCH = "verl.trainer.constants_ppo"

COLUMNS = {
    "values": "values",
    "returns": "returns",
    "old_log_probs": "old_log_probs",
    "ref_log_prob": "ref_log_prob",
    "rollout_log_probs": "rollout_log_probs",
    "token_level_scores": "token_level_scores",
    "token_level_rewards": "token_level_rewards",
}
"""Our column -> verl's field. Its advantages are whitened or not, by the estimator."""
PADDED = [
    *COLUMNS.values(),
    "attention_mask",
    "prompts",
    "responses",
    "response_mask",
    "advantages",
]
"""What is read of a padded batch, where it is there."""
KL_KINDS = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "k3"}


def install() -> None:
    """Listens to verl's trainers if TELESCOPE_WATCH names a folder."""
    if os.environ.get(VARIABLE):
        on_import({V1: watch_v1, LEGACY: watch_legacy, LAUNCH: hand_on})


def hand_on(module: ModuleType) -> None:
    """Ray's workers get our variables too: a cluster that runs already does not have them."""

    def add_ours(environment: dict[str, Any], *_: Any, **__: Any) -> None:
        environment.setdefault("env_vars", {}).update(variables_of_workers())

    listen(module, "get_ppo_ray_runtime_env", _safely, after=add_ours)


def _recorder(tokenizer: Any, config: Any) -> Recorder:
    return Recorder(
        os.environ[VARIABLE],
        tokenizer=tokenizer,
        settings=settings_of(config),
        trainer="verl",
        **options_of_environment(),
    )


# ---- settings ----


def settings_of(config: Any) -> dict[str, Any]:
    """verl's settings under our names."""
    algorithm = config.algorithm
    actor = config.actor_rollout_ref.actor
    in_reward = bool(algorithm.get("use_kl_in_reward", False))
    clip = float(actor.get("clip_ratio", 0.2))
    return {
        "estimator": estimator_of(
            _plain(algorithm.adv_estimator), bool(algorithm.get("norm_adv_by_std_in_grpo", True))
        ),
        "gamma": float(algorithm.gamma),
        "lam": float(algorithm.lam),
        "kl_coef": float(algorithm.kl_ctrl.kl_coef) if in_reward else 0.0,
        "kl_kind": KL_KINDS.get(_plain(algorithm.get("kl_penalty", "kl"))),
        "clip_low": float(actor.get("clip_ratio_low", clip)),
        "clip_high": float(actor.get("clip_ratio_high", clip)),
        "temperature": float(config.actor_rollout_ref.rollout.temperature),
    }


def estimator_of(verl_name: str, divides_by_std: bool = True) -> str:
    """Our name of verl's estimator; verl's own where we have none.

    A definition names verl's function, `compute_<name>_…`. Two share one where a switch of verl
    (dividing by σ) makes the difference: the first divides.
    """
    wanted = f"compute_{verl_name.removesuffix('_vectorized')}_"
    rest = ("outcome_advantage", "advantage_return", "advantage")
    ours = [name for name in ESTIMATORS if ESTIMATORS[name].verl.removeprefix(wanted) in rest]
    if not ours:
        return verl_name
    return ours[0] if divides_by_std or len(ours) == 1 else ours[1]


def _plain(name: Any) -> str:
    return str(getattr(name, "value", name))


# ---- the V1 trainer: the batch is in the TransferQueue until the end of the step ----


def watch_v1(module: ModuleType) -> None:
    """Reads the batch where the trainer computes the step's metrics: everything is there."""

    def record(_: Any, trainer: Any, batch: Any, metrics: Any, *__: Any, **___: Any) -> None:
        _record_v1(trainer, batch, metrics, module.tq)

    def close(trainer: Any, *_: Any, **__: Any) -> None:
        if hasattr(trainer, "_telescope"):
            trainer._telescope.close()  # Ray kills the process when the trainer returns

    listen(module.PPOTrainer, "_compute_metrics", _safely, after=record)
    listen(module.PPOTrainer, "fit", _safely, at_end=close)


def _record_v1(trainer: Any, batch: Any, metrics: Mapping[str, Any], queue: Any) -> None:
    if not hasattr(trainer, "_telescope"):
        trainer._telescope = _recorder(trainer.tokenizer, trainer.config)
    recorder: Recorder = trainer._telescope
    step = trainer.global_steps
    logged = numbers(metrics)
    if step % recorder.every:
        recorder.record(step, metrics=logged, responses=[])
        return
    real = sorted(  # a key begins with its prompt's random uid: a draw of whole groups
        key
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False)
    )
    fields = ["prompts", "responses", "response_mask", "rm_scores", "advantages", "uid"]
    data = queue.kv_batch_get(
        keys=real,
        partition_id=batch.partition_id,
        select_fields=[*fields, *(name for name in COLUMNS.values() if name not in fields)],
    )
    found = {name: _rows(data[name]) for name in data.keys() if name != "uid"}  # noqa: SIM118
    found.setdefault("token_level_scores", found["rm_scores"])
    found.setdefault("token_level_rewards", found["token_level_scores"])
    given = _given(found, recorder.settings)
    lengths = [len(row) for row in given["responses"]]
    given |= _truncated(given["responses"], lengths, trainer.config, trainer.tokenizer)
    if "uid" in data.keys():  # noqa: SIM118
        given["group"] = _names(data["uid"])
        given |= _compared(given, recorder.settings)
    recorder.record(step, metrics=logged, **given)


def _names(texts: Any) -> list[Any]:
    """Texts of the batch: tensordict gives a list, its stack, or an array."""
    return list(texts.tolist() if hasattr(texts, "tolist") else texts)


def _rows(nested: Any) -> list[Any]:
    """A nested tensor as one tensor per response."""
    return list(nested.unbind()) if getattr(nested, "is_nested", False) else list(nested)


# ---- the legacy trainer: compute_advantage has the whole batch ----


def watch_legacy(module: ModuleType) -> None:
    """Reads the batch when its advantages are computed; the step is the trainer's."""
    watching: dict[str, Any] = {}

    def begin(trainer: Any, *_: Any, **__: Any) -> None:
        recorder = _recorder(trainer.tokenizer, trainer.config)
        watching.update(trainer=trainer, recorder=recorder)

    def record(data: Any, /, *_: Any, **__: Any) -> None:
        if "recorder" in watching:
            trainer = watching["trainer"]
            _record_padded(watching["recorder"], trainer.global_steps, data, trainer.config)

    def close(*_: Any, **__: Any) -> None:
        if "recorder" in watching:
            watching.pop("recorder").close()

    listen(module.RayPPOTrainer, "fit", _safely, before=begin, at_end=close)
    listen(module, "compute_advantage", _safely, after=record)


def _record_padded(recorder: Recorder, step: int, data: Any, config: Any) -> None:
    """A DataProto: padded tensors, prompts on the left."""
    names = list(data.non_tensor_batch.get("uid", ()))
    order = sorted(range(len(names)), key=names.__getitem__) if names else slice(None)
    there = [name for name in PADDED if name in data.batch.keys()]  # noqa: SIM118
    batch = {name: data.batch[name][order] for name in there}
    prompt_width = batch["prompts"].shape[-1]
    exists = batch["attention_mask"][:, prompt_width:].sum(-1).tolist()
    given = _given(batch, recorder.settings) | {"lengths": exists}
    given |= _truncated(batch["responses"], exists, config, recorder.tokenizer)
    given["prompts"] = kept(batch["prompts"], batch["attention_mask"][:, :prompt_width])
    if names:
        given["group"] = sorted(names)
        given |= _compared(given, recorder.settings)
    recorder.record(step, **given)


# ---- both ----


def _given(found: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `record`."""
    given = {ours: found[theirs] for ours, theirs in COLUMNS.items() if theirs in found}
    estimator = settings["estimator"]
    whitens = estimator in ESTIMATORS and ESTIMATORS[estimator].whiten
    given["whitened" if whitens else "advantages"] = found["advantages"]
    given |= {"responses": found["responses"], "mask": found["response_mask"]}
    given["scores"] = [float(row.sum()) for row in found["token_level_scores"]]
    if "prompts" in found:
        given["prompts"] = found["prompts"]
    return given


def _truncated(
    responses: Any, lengths: Sequence[int], config: Any, tokenizer: Any
) -> dict[str, list[bool]]:
    """Which responses fill the longest length without an EOS at their end, if that is known."""
    limit = (config.get("data") or {}).get("max_response_length")
    if limit is None:
        return {}
    eos = getattr(tokenizer, "eos_token_id", None)
    ends = zip(responses, lengths, strict=True)
    return {"truncated": [n >= limit and int(row[n - 1]) != eos for row, n in ends]}


def _compared(given: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What each response is compared with and divided by, where the estimator compares scores.

    It is taken from the whole batch: the responses that are kept may not be whole groups. verl's
    formulas are ours, so its advantages must follow from these numbers.
    """
    definition = ESTIMATORS.get(settings["estimator"])
    if definition is None or definition.compare is None or not _compares_scores(definition.needs):
        return {}
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(given["group"]):
        groups.setdefault(name, []).append(row)
    rewards, masks = given["token_level_rewards"], given["mask"]
    baselines: list[Any] = [None] * len(rewards)
    scale = [1.0] * len(rewards)
    credit = Settings.of(estimator=definition.name).credit
    for rows in groups.values():
        members = [_outcome(rewards[row], masks[row]) for row in rows]
        for row, found in zip(rows, definition.compare(members, credit), strict=True):
            baselines[row] = [(found.baselines or [0.0])[0]] * len(rewards[row])
            scale[row] = 1.0 if found.scale is None else found.scale
    return {"baselines": baselines, "scale": scale}


def _compares_scores(needs: Needs) -> bool:
    """Whether the sums of the rewards of a group are all that the estimator compares."""
    others = needs.greedy_baseline or needs.sum_pi_squared or needs.attention or needs.score_parts
    return needs.groups and not others


def _outcome(rewards: Any, mask: Any) -> Actions:
    """A response with its rewards as one number; its length is that of what was written."""
    written = rewards[mask > 0]
    return Actions({"token_level_rewards": [float(written.sum())]}, at=range(len(written)))


@contextlib.contextmanager
def _safely() -> Iterator[None]:
    """Nothing that goes wrong here may reach verl."""
    try:
        yield
    except Exception as error:
        _log.warning("telescope: this step of verl was not recorded: %s", error)


install()
