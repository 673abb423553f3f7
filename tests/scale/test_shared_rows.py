"""Updates of ranks that share rows equal those of one process. Without Ray, which tests/scale/test_ray.py adds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope.batch import TokenBatch
from telescope.build import build_local_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.models.parallel import ProcessGroup, full_tensor
from telescope.roles.actor import Actor
from telescope.roles.critic import Critic
from telescope.scale.worker import Worker
from tests.scale.on_ray import close, config_for, reward
from tests.together import together


def two_updates(actor: Actor, critic: Critic, batch: TokenBatch) -> dict:
    """Metrics of two updates, then log-probs, values and trained weights."""
    metrics = [critic.update_critic(batch) | actor.update_actor(batch) for _ in range(2)]
    out: dict = {"metrics": metrics}
    out["log_probs"] = actor.compute_log_prob(batch)
    out["values"] = critic.compute_values(batch)["values"]
    for name, role in (("actor", actor), ("critic", critic)):
        weights = [full_tensor(weight.detach()) for weight in role.learner.masters]
        out[name] = [weight.clone() for weight in weights]
    return out


def on_this_rank(config: Config, batch: TokenBatch) -> dict:
    worker = Worker()
    worker.config = config
    worker.device = torch.device("cpu")
    worker.roles = {}
    ranks = ProcessGroup(worker.device, config.ray.fsdp_size, config.ray.sequence_parallel_size)
    worker._build_actor(ranks)
    worker._build_critic(ranks)
    return two_updates(worker.roles["actor"], worker.roles["critic"], batch)


@pytest.mark.parametrize("lora", [False, True], ids=["two-ranks", "four-ranks-lora"])
def test_updates_of_ranks_that_share_rows_equal_one_process(
    lora: bool, tmp_path: Path, tiny_model: Path
) -> None:
    """Seven rows in minibatches of two or three, a histogram of values, and a loss whose ratios are of whole rows."""
    more = [("actor.loss", "gspo"), ("critic.loss", "hl_gauss"), ("critic.bins", "7")]
    ray = [("backend", "ray"), ("ray.workers", "2"), ("ray.sequence_parallel_size", "2")]
    if lora:
        pytest.importorskip("peft")
        more += [("model.lora_rank", "3"), ("model.gradient_checkpointing", "true")]
        ray[1:2] = [("ray.workers", "4"), ("ray.fsdp_size", "2")]
    config = config_for(tmp_path, tiny_model, *more)
    roles = build_local_roles(config, reward)
    prompts = build_data(config, roles.actor.tokenizer)[0].take(range(7), seed=0)
    batch = roles.actor.generate_sequences(prompts)
    batch = roles.reward.compute_reward(
        roles.reference.compute_log_prob(roles.critic.compute_values(batch))
    )
    batch = compute_advantages(batch, config.credit, kl_coef=0.05).without_info()
    shared = config_for(tmp_path, tiny_model, *more, *ray)
    said = together(shared.ray.workers, tmp_path / "ranks", on_this_rank, shared, batch)
    assert isinstance(roles.critic, Critic)
    alone = two_updates(roles.actor, roles.critic, batch)
    for ours in said:
        close(alone, ours)
