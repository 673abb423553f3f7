"""Watches OpenRLHF 0.11: what its experience maker hands to the actor and the critic.

    telescope.watch(trainer.experience_maker, "runs/my-run")        # in the trainer's process

The trainer of OpenRLHF's own command, `openrlhf.cli.train_ppo_ray`, runs in a Ray actor. This
starts that command and watches it there:

    TELESCOPE_WATCH=runs/my-run python -m telescope.peers.openrlhf …

An `Experience` holds whole sequences. Slot j of its other tensors belongs to token j + 1.
"""

from __future__ import annotations

import functools
import os
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from telescope.algorithms.definitions import ESTIMATORS
from telescope.peers.hooks import (
    VARIABLE,
    frames,
    listen,
    numbers,
    options_of_environment,
    variables_of_workers,
)
from telescope.peers.on_import import on_import
from telescope.peers.recorder import Recorder
from telescope.peers.words import said

COMMAND = "openrlhf.cli.train_ppo_ray"
TRAINER = "openrlhf.trainer.ppo_trainer"
OUR_NAMES = {
    "reinforce": "reinforce++",
    "reinforce_baseline": "reinforce++_baseline",
    "group_norm": "grpo",
}
"""OpenRLHF's estimators that have another name here."""
COLUMNS = {
    "old_log_probs": "action_log_probs",
    "ref_log_prob": "base_action_log_probs",
    "rollout_log_probs": "rollout_log_probs",
    "values": "values",
    "returns": "returns",
}
"""Our column -> the field of an Experience. Its advantages are whitened by some estimators."""
GROUP_STD_EPS = 1e-9
"""What OpenRLHF adds to the σ of a group; ours is 1e-6."""
RULES = (said("openrlhf_gaps"), said("openrlhf_kl"))
"""Where OpenRLHF's rules differ from ours. Its σ, over n instead of n − 1, is recorded as it is."""


def watch_maker(maker: Any, folder: Path | str, options: dict[str, Any]) -> Recorder:
    """Records every batch of experience that `maker` makes."""
    own = {
        "settings": settings_of(maker.args),
        "tokenizer": maker.tokenizer,
        "trainer": "openrlhf",
        "rules": RULES,
    }
    recorder = Recorder(folder, **{**own, **options})
    batch = _Batch()

    def record(experiences: Sequence[Any], *_: Any) -> None:
        settings = {"kl_coef": _kl_coef(maker)}
        given = batch.given(experiences, maker)
        recorder.record(batch.step(), settings=settings, **given)

    def hear(method: str, **see: Callable[..., object]) -> None:
        listen(maker, method, recorder.guarded, **see)

    hear("compute_advantages_and_returns", before=batch.begin, after=record)
    hear("get_advantages_and_returns", before=lambda _, r, *__: batch.rewards.append(r))
    hear("get_cumulative_returns", before=lambda r, *_: batch.rewards.append(r))
    return recorder


def watch_trainer(trainer: Any, folder: Path | str, options: dict[str, Any]) -> Recorder:
    """Records the experience maker's batches, and the trainer's metrics."""
    recorder = watch_maker(trainer.experience_maker, folder, options)

    def log(result: tuple[dict[str, Any], int], _: Any, step: int) -> None:
        recorder.log(step, numbers(result[0]))

    listen(trainer, "train_step", recorder.guarded, after=log)
    return recorder


def settings_of(args: Any) -> dict[str, Any]:
    """OpenRLHF's settings under our names."""
    advantage = args.algo.advantage
    low, high = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
    return {
        "estimator": OUR_NAMES.get(advantage.estimator, advantage.estimator),
        "gamma": advantage.gamma,
        "lam": advantage.lambd,
        "kl_kind": args.algo.kl.estimator,
        "clip_low": low,
        "clip_high": high,
        "clip_value": args.critic.value_clip,
        "temperature": args.rollout.temperature,
    }


def _kl_coef(maker: Any) -> float:
    """β as it is now; 0 where the KL is in the loss."""
    return 0.0 if maker.args.algo.kl.use_loss else max(float(maker.kl_ctl.value), 0.0)


class _Batch:
    """What the experience maker has before it discards it: KL and rewards by token."""

    def __init__(self) -> None:
        self.kl: list[Any] = []
        self.rewards: list[Any] = []
        self.steps = 0

    def begin(self, experiences: Sequence[Any], *_: Any) -> None:
        self.kl = [experience.kl for experience in experiences]
        self.rewards = []

    def step(self) -> int:
        """The trainer's step; the number of batches so far where there is no trainer."""
        known = next((found.get("global_step") for found in frames("train_step")), None)
        step = self.steps if known is None else int(known)
        self.steps = step + 1
        return step

    def given(self, experiences: Sequence[Any], maker: Any) -> dict[str, Any]:
        """The arguments of `record`: one list per response, in the order of the rollout."""
        rows: list[dict[str, Any]] = []
        for experience, kl, rewards in zip(experiences, self.kl, self.rewards, strict=True):
            rows += _rows(experience, kl, rewards)
        rows.sort(key=lambda row: row.pop("index"))
        given = {name: [row[name] for row in rows] for name in rows[0]}
        definition = ESTIMATORS.recorded(settings_of(maker.args)["estimator"])
        if definition is not None and definition.whiten:
            given["whitened"] = given.pop("used")
            given |= _moments(given, bool(maker.args.algo.advantage.no_std_norm))
        else:
            given["advantages"] = given.pop("used")
        per_prompt = int(maker.args.rollout.n_samples_per_prompt)
        if per_prompt > 1:
            given["group"] = [row // per_prompt for row in range(len(rows))]
        if definition is not None and definition.needs.groups:
            given |= _compared(given, maker, per_prompt)
        return given


def _rows(experience: Any, kl: Any, rewards: Any) -> list[dict[str, Any]]:
    """The responses of one experience, each from its first action to its last token."""
    columns = {ours: getattr(experience, theirs) for ours, theirs in COLUMNS.items()}
    columns |= {"kl": kl, "token_level_rewards": rewards, "used": experience.advantages}
    columns = {name: column for name, column in columns.items() if column is not None}
    found = []
    for row, mask in enumerate(experience.action_mask.bool()):
        exists = int(experience.attention_mask[row].nonzero()[-1])
        actions = mask.nonzero().flatten()
        start, end = (int(actions[0]), exists) if len(actions) else (exists, exists)
        found.append(
            {name: column[row, start:end] for name, column in columns.items()}
            | {
                "index": experience.index[row],
                "responses": experience.sequences[row, start + 1 : end + 1],
                "mask": mask[start:end],
                "prompts": experience.sequences[row, : start + 1],
                "scores": float(experience.rewards[row]),
            }
        )
        if experience.truncated is not None:
            found[-1]["truncated"] = bool(experience.truncated[row])
    return found


def _compared(given: dict[str, Any], maker: Any, per_prompt: int) -> dict[str, Any]:
    """What a score was compared with and divided by, and rewards from before that comparison."""
    import torch

    groups = torch.tensor(given["scores"]).reshape(-1, per_prompt)
    baseline = groups.mean(1, keepdim=True).expand_as(groups)
    estimator = maker.args.algo.advantage.estimator
    if estimator == "rloo":
        baseline = (groups.sum(1, keepdim=True) - groups) / (per_prompt - 1)
    found: dict[str, Any] = {"token_level_scores": [], "token_level_rewards": [], "baselines": []}
    beta = _kl_coef(maker)
    rows = zip(given["mask"], given["kl"], given["scores"], baseline.flatten(), strict=True)
    for mask, kl, score, compared_with in rows:
        paid = torch.zeros(len(mask))
        paid[mask.nonzero().flatten()[-1:]] = score
        found["token_level_scores"].append(paid)
        found["token_level_rewards"].append(paid - beta * kl)
        found["baselines"].append(compared_with.repeat(len(mask)))
    if estimator == "group_norm":
        spread = groups.std(1, keepdim=True) + GROUP_STD_EPS
        found["scale"] = spread.expand_as(groups).flatten()
    return found


def _moments(given: dict[str, Any], only_mean: bool) -> dict[str, Any]:
    """μ and σ as OpenRLHF takes them: the variance is over n, and not below 1e-8."""
    import torch

    raw = given["returns"]
    if "values" in given:
        pairs = zip(raw, given["values"], strict=True)
        raw = [returns - values for returns, values in pairs]
    chosen = [row[mask].double() for row, mask in zip(raw, given["mask"], strict=True)]
    flat = torch.cat(chosen)
    variance = flat.var(correction=0).clamp(min=1e-8)
    return {"moments": (float(flat.mean()), 1.0 if only_mean else float(variance.sqrt()))}


# ---- OpenRLHF's own command ----


def install() -> None:
    """Watches every trainer that is made in this process, if TELESCOPE_WATCH names a folder."""
    if os.environ.get(VARIABLE):
        on_import({TRAINER: watch_module})


def watch_module(module: ModuleType) -> None:
    """A trainer of this module is watched as soon as it is made."""
    folder = os.environ[VARIABLE]

    def watch(_: None, trainer: Any, *__: Any, **___: Any) -> None:
        trainer.telescope = watch_trainer(trainer, folder, options_of_environment())

    listen(module.BasePPOTrainer, "__init__", Recorder(folder).guarded, after=watch)


def main() -> None:
    """Runs OpenRLHF's command. Its Ray workers install the watch before anything else."""
    import ray

    start = ray.init

    @functools.wraps(start)
    def watched(*args: Any, **kwargs: Any) -> Any:
        own = dict(kwargs.pop("runtime_env", None) or {})
        own["env_vars"] = {**own.get("env_vars", {}), **variables_of_workers()}
        own["worker_process_setup_hook"] = "telescope.peers.openrlhf.install"
        return start(*args, runtime_env=own, **kwargs)

    ray.init = watched
    runpy.run_module(COMMAND, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
