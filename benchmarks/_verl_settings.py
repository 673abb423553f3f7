"""recipes/gsm8k.toml under verl's names, and the variables with which verl is started."""

import argparse
import os
from pathlib import Path

from telescope.config import Config

ROOT = Path(__file__).resolve().parent.parent
RECIPE = ROOT / "recipes" / "gsm8k.toml"
GROUP = 4
"""Responses to one question for GRPO; PPO has one."""


def overrides(args: argparse.Namespace, recipe: Config) -> list[str]:
    """The recipe under verl's names."""
    actor, critic, rollout = recipe.actor, recipe.critic, recipe.rollout
    each = 1 if args.estimator == "gae" else GROUP
    rows = args.rows or rollout.batch_size
    tokens = args.tokens or rollout.max_response_tokens
    prompt = recipe.data.max_prompt_tokens
    check = args.evaluate or args.data
    given = {
        "hydra.run.dir": args.out / "hydra",
        "trainer.device": args.device,
        "trainer.use_v1": not args.legacy,
        "algorithm.adv_estimator": args.estimator,
        "algorithm.gamma": recipe.credit.gamma,
        "algorithm.lam": recipe.credit.lam,
        "algorithm.use_kl_in_reward": False,
        "data.train_files": args.data,
        "data.val_files": check,
        "data.train_batch_size": rows // each,
        "data.max_prompt_length": prompt,
        "data.max_response_length": tokens,
        "data.truncation": "error",
        "data.seed": args.seed,
        "reward.custom_reward_function.path": ROOT / "benchmarks" / "_verl_reward.py",
        "reward.custom_reward_function.name": "compute_score",
        "trainer.logger": "[console,file]",
        "trainer.n_gpus_per_node": 1,
        "trainer.nnodes": 1,
        "trainer.val_before_train": args.evaluate is not None,
        "trainer.test_freq": args.every if args.evaluate else -1,
        "trainer.save_freq": -1,
        "trainer.resume_mode": "disable",
        "trainer.total_epochs": 1000,
        "trainer.total_training_steps": args.steps or 100_000,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init._node_ip_address": "127.0.0.1",
    }
    given |= learner("actor_rollout_ref", "actor_rollout_ref.actor", args, recipe, rows // each)
    given |= {
        "actor_rollout_ref.actor.clip_ratio_low": actor.clip_low,
        "actor_rollout_ref.actor.clip_ratio_high": actor.clip_high,
        "actor_rollout_ref.actor.clip_ratio_c": 1000,  # no second clip, as in the recipe
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": args.micro,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": args.micro,
        "actor_rollout_ref.rollout.n": each,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.temperature": rollout.temperature,
    }
    if args.estimator == "gae":
        given |= learner("critic", "critic", args, recipe, rows)
        given |= {
            "critic.cliprange_value": critic.clip_value,
            # V1 does not hand these on from the critic's own settings
            "+critic.fsdp.use_dynamic_bsz": False,
            "+critic.fsdp.micro_batch_size_per_gpu": args.micro,
            "+critic.fsdp.infer_micro_batch_size_per_gpu": args.micro,
        }
    given |= on_cpu() if args.device == "cpu" else on_gpu(args, rows, prompt + tokens)
    return [f"{name}={value}" for name, value in given.items()]


def learner(
    model: str, side: str, args: argparse.Namespace, recipe: Config, prompts: int
) -> dict[str, object]:
    """Model, optimizer and minibatches of the actor or the critic."""
    ours = recipe.critic if side == "critic" else recipe.actor
    return {
        f"{model}.model.path": args.model,
        f"+{model}.model.override_config.attn_implementation": args.attention,
        f"{model}.model.use_remove_padding": False,
        f"{model}.model.enable_gradient_checkpointing": False,
        f"{side}.strategy": "fsdp2" if args.device == "cpu" else "fsdp",
        f"{side}.optim.lr": ours.lr,
        f"{side}.optim.lr_warmup_steps": ours.warmup_steps or -1,
        f"{side}.optim.weight_decay": ours.weight_decay,
        f"{side}.ppo_mini_batch_size": prompts // ours.minibatches,
        f"{side}.ppo_micro_batch_size_per_gpu": args.micro,
    }


def on_gpu(args: argparse.Namespace, rows: int, length: int) -> dict[str, object]:
    return {
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.gpu_memory_utilization": args.vllm_memory,
        "actor_rollout_ref.rollout.max_model_len": length,
        "actor_rollout_ref.rollout.max_num_seqs": rows,
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": 512,
        "actor_rollout_ref.rollout.agent.num_workers": 8,
        "reward.num_workers": 4,
        "data.dataloader_num_workers": 2,
        "ray_kwargs.ray_init.num_cpus": 16,  # as many as these workers want; Ray only counts
        "+ray_kwargs.ray_init.object_store_memory": 4_000_000_000,
    }


def on_cpu() -> dict[str, object]:
    return {
        "actor_rollout_ref.rollout.name": "transformers",
        "actor_rollout_ref.rollout.free_cache_engine": False,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.ref.strategy": "fsdp2",
        "actor_rollout_ref.actor.use_torch_compile": False,
        "data.dataloader_num_workers": 0,
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "ray_kwargs.ray_init.num_cpus": 10,  # Ray counts them, it does not bind them
        "+ray_kwargs.ray_init.num_gpus": 1,
        "+ray_kwargs.ray_init.object_store_memory": 500_000_000,
    }


def environment(args: argparse.Namespace, patches: list[str]) -> dict[str, str]:
    modules = ["benchmarks._verl_patches"]
    found = {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TELESCOPE_VERL_PATCHES": ",".join(patches),
        "VERL_FILE_LOGGER_PATH": str(args.out / "metrics.jsonl"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "RAY_ADDRESS": "local",  # a cluster of its own, whatever runs on this machine
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
        "HYDRA_FULL_ERROR": "1",
    }
    if args.cross_entropy:
        found["TELESCOPE_VERL_CROSS_ENTROPY"] = str(args.cross_entropy.resolve())
    if args.seconds:
        found["TELESCOPE_VERL_SECONDS"] = str(args.seconds)
    if args.device == "cpu":
        modules.insert(0, "benchmarks._verl_cpu")
        found |= {"VERL_PLATFORM": "cpu", "OMP_NUM_THREADS": "1"}
    if args.watch:
        modules.append("telescope.peers.verl_plugin")  # also where Telescope is not installed
        found["TELESCOPE_WATCH"] = str(args.out / "watched")
        found["TELESCOPE_WATCH_EVERY"] = "2"
    return os.environ | found | {"VERL_USE_EXTERNAL_MODULES": ",".join(modules)}
