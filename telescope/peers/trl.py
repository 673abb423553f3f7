"""Watches a trainer of TRL: PPO (1.12) and GRPO (1.12 to 1.16), on the trainer's own process.

    telescope.watch(trainer, "runs/my-trl-run")
    trainer.train()

PPO keeps a step's tensors as local variables of `train()`: a callback reads them there when the
step ends. GRPO returns them from a method, which is wrapped. Neither changes what TRL computes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from telescope.errors import TelescopeError
from telescope.peers.hooks import frames, kept, listen, numbers
from telescope.peers.recorder import Recorder
from telescope.peers.words import said

PPO_COLUMNS = {
    "old_log_probs": "logprobs",
    "ref_log_prob": "ref_logprobs",
    "values": "values",
    "token_level_rewards": "rewards",
    "returns": "returns",
    "whitened": "advantages",
}
"""Our column -> the local variable of TRL's PPO."""
GROUP_STD_EPS = 1e-4
"""What TRL's GRPO adds to σ; ours is 1e-6."""
AGGREGATIONS = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "bnpo": "token-mean",
    "dapo": "token-mean",
    "cispo": "token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""TRL's `loss_type` -> how the terms of the tokens are averaged."""


# ---- PPO ----


def watch_ppo(trainer: Any, folder: Path | str, options: dict[str, Any]) -> Recorder:
    args = trainer.args
    settings = {
        "estimator": "gae",
        "gamma": args.gamma,
        "lam": args.lam,
        "kl_coef": args.kl_coef,
        "kl_kind": args.kl_estimator,
        "clip_low": args.cliprange,
        "clip_high": args.cliprange,
        "clip_value": args.cliprange_value,
        "temperature": args.temperature,
    }
    recorder = _recorder(trainer, folder, settings, "trl_ppo", options)
    trainer.add_callback(_callback(lambda: _record_ppo(trainer, recorder), recorder))
    return recorder


def _record_ppo(trainer: Any, recorder: Recorder) -> None:
    found = _locals_of(trainer, "train", "padding_mask")
    # TRL pays the score in the slot after the last token and gives that slot a value: it is one
    # more time step, with a token that nobody chose.
    valid = ~found["padding_mask"]
    recorder.record(
        trainer.state.global_step,
        prompts=kept(found["queries"], found["queries"] != trainer.processing_class.pad_token_id),
        responses=found["responses"],
        mask=valid,
        lengths=valid.sum(1).tolist(),
        scores=found["scores"],
        truncated=(~found["contain_eos_token"]).tolist(),
        metrics=numbers(found["metrics"]),
        **{ours: found[theirs] for ours, theirs in PPO_COLUMNS.items()},
    )


def _locals_of(owner: Any, function: str, variable: str) -> dict[str, Any]:
    """The local variables of the running method `function` of `owner`."""
    for found in frames(function):
        if found.get("self") is owner and variable in found:
            return found
    raise TelescopeError(f"this version of TRL has no {variable!r} in {function}()")


def _callback(record: Callable[[], None], recorder: Recorder) -> Any:
    from transformers import TrainerCallback

    class Watch(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            with recorder.guarded():
                record()

        def on_train_end(self, *_: Any, **__: Any) -> None:
            recorder.close()

    return Watch()


# ---- GRPO ----


def watch_grpo(trainer: Any, folder: Path | str, options: dict[str, Any]) -> Recorder:
    args = trainer.args
    estimator = "grpo" if _scales(args) == "group" else "dr_grpo"
    settings = {
        "estimator": "gdpo" if _normalises_each(args) else estimator,
        "whiten": _scales(args) == "batch",
        "gamma": 1.0,
        "kl_coef": 0.0,
        "kl_loss_coef": args.beta,
        "temperature": args.temperature,
        **_loss(args),
    }
    recorder = _recorder(trainer, folder, settings, "trl_grpo", options)
    seen: dict[str, Any] = {}

    def keep(rewards: Any, *_: Any, **__: Any) -> None:
        seen["rewards"] = rewards

    def record(output: dict[str, Any], *_: Any, **__: Any) -> None:
        _record_grpo(trainer, recorder, output, seen.get("rewards"))

    listen(trainer, "_calculate_rewards", recorder.guarded, after=keep)
    listen(trainer, "_generate_and_score_completions", recorder.guarded, after=record)
    trainer.add_callback(_callback(lambda: None, recorder))
    return recorder


def _loss(args: Any) -> dict[str, Any]:
    """TRL's loss under our names."""
    kind = args.loss_type
    level = getattr(args, "importance_sampling_level", "token")
    clips = kind in ("grpo", "dapo", "bnpo", "dr_grpo")
    high = args.epsilon if args.epsilon_high is None else args.epsilon_high
    found = {
        "loss": {"token": "clip", "sequence": "gspo"}.get(level, kind) if clips else kind,
        "aggregation": AGGREGATIONS.get(kind),
        "clip_low": args.epsilon,
        "clip_high": high,
        "dual_clip": getattr(args, "delta", None),
    }
    if kind == "cispo":  # the ratio has an upper bound only, and this is it
        found |= {"clip_low": 0.9999, "clip_high": high - 1}
    if kind == "sapo":
        found |= {
            "tau_positive": args.sapo_temperature_pos,
            "tau_negative": args.sapo_temperature_neg,
            "ratio_level": level,
        }
    return found


def _scales(args: Any) -> str:
    """What TRL divides by: the σ of a group, of the batch, or none."""
    if _normalises_each(args):
        return "group"
    kind = str(getattr(args, "scale_rewards", "group")).lower()
    return {"true": "group", "false": "none"}.get(kind, kind)


def _record_grpo(trainer: Any, recorder: Recorder, output: dict[str, Any], rewards: Any) -> None:
    if not trainer.model.training:
        return
    exists = output["completion_mask"].bool()
    mask = exists & output["tool_mask"].bool() if "tool_mask" in output else exists
    count, width = mask.shape
    used = output["advantages"].reshape(count, -1).expand(count, width)
    given: dict[str, Any] = {
        "prompts": kept(output["prompt_ids"], output["prompt_mask"]),
        "responses": output["completion_ids"],
        "mask": mask,
        "lengths": exists.sum(1).tolist(),
        "whitened" if _scales(trainer.args) == "batch" else "advantages": used,
        "group": [i // trainer.num_generations for i in range(count)],
    }
    last = output["completion_ids"].gather(1, (exists.sum(1, keepdim=True) - 1).clamp(min=0))
    own = trainer.processing_class
    tokenizer = getattr(own, "tokenizer", own)  # a processor of images has one
    ends = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    is_masked = ~exists.any(1)  # TRL masks truncated answers only
    given["truncated"] = [
        token not in ends or masked
        for token, masked in zip(last[:, 0].tolist(), is_masked.tolist(), strict=True)
    ]
    names = {
        "old_log_probs": "old_per_token_logps",
        "ref_log_prob": "ref_per_token_logps",
        "rollout_log_probs": "sampling_per_token_logps",
    }
    given |= {ours: output[theirs] for ours, theirs in names.items() if theirs in output}
    if rewards is not None and len(rewards) == count:  # one process: all rewards are here
        given |= _outcomes(trainer, rewards, mask)
    recorder.record(trainer.state.global_step, **given)


def _outcomes(trainer: Any, rewards: Any, mask: Any) -> dict[str, Any]:
    """Scores, their parts, and what TRL compares and divides them by."""
    import torch

    weights = trainer.reward_weights.to(rewards.device)
    is_scored = ~rewards.isnan().all(1)  # a reward function may return None
    scores = torch.where(is_scored, (rewards * weights).nansum(1), torch.nan)
    groups = scores.view(-1, trainer.num_generations)
    mean = groups.nanmean(1).repeat_interleave(trainer.num_generations)
    scale = torch.ones_like(scores)
    if _scales(trainer.args) == "group":
        scale = (_spread(groups) + GROUP_STD_EPS).repeat_interleave(trainer.num_generations)
    known = is_scored & scale.isfinite()  # others have the advantage 0
    mean = torch.where(known, mean, scores).nan_to_num()
    scale = torch.where(known, scale, 1.0)
    paid = torch.zeros(mask.shape)
    last = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    paid[torch.arange(len(paid)), last.cpu()] = scores.nan_to_num().float().cpu()
    paid *= mask.cpu()  # an answer that TRL masks as a whole is not paid
    names = list(trainer.reward_func_names)
    rows = [dict(zip(names, row, strict=True)) for row in rewards.tolist()]
    found = {
        "scores": [score if score == score else None for score in scores.tolist()],
        "parts": [{name: x for name, x in row.items() if x == x} for row in rows],
        "token_level_scores": paid,
        "token_level_rewards": paid,
    }
    if _normalises_each(trainer.args):
        return found
    found |= {"scale": scale, "baselines": mean[:, None].expand(mask.shape)}
    if _scales(trainer.args) == "batch":
        found["moments"] = (0.0, float(_spread(scores[None])) + GROUP_STD_EPS)
    return found


def _spread(rows: Any) -> Any:
    """σ of each row over its n − 1 numbers that are there."""
    squares = (rows - rows.nanmean(1, keepdim=True)).square().nansum(1)
    return (squares / ((~rows.isnan()).sum(1) - 1)).sqrt()


def _normalises_each(args: Any) -> bool:
    """Whether each reward is compared within its group before they are added."""
    return getattr(args, "multi_objective_aggregation", "") == "normalize_then_sum"


# ---- both ----


def _recorder(
    trainer: Any,
    folder: Path | str,
    settings: dict[str, Any],
    rule: str,
    options: dict[str, Any],
) -> Recorder:
    own = {
        "rules": [said(rule)],  # where TRL's differs from ours
        "tokenizer": getattr(trainer, "processing_class", None),
        "trainer": "trl",
        "settings": settings,
    }
    return Recorder(folder, **{**own, **options})
