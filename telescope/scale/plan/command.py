"""The options of `telescope plan`, and the jobs that they ask for."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace

from telescope.config import Config, load_config
from telescope.config.checks import one_process_settings
from telescope.errors import TelescopeError
from telescope.scale.plan import fit
from telescope.scale.plan.job import Job, Rates, all_gpus, others
from telescope.scale.plan.shapes import NO_CRITIC, SHAPES, Shape, read_shape
from telescope.scale.plan.table import table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `telescope plan` that are not settings."""
    parser.add_argument(
        "--gpus",
        help="numbers of GPUs in all, a column each (default: those of the recipe if it has "
        "workers that do not train; 1 if it is for one; else 1,8,64,512)",
    )
    parser.add_argument(
        "--suggest",
        action="store_true",
        help="instead: the fewest changes of settings with which the recipe fits one GPU",
    )
    parser.add_argument(
        "--shape",
        choices=SHAPES,
        help="size of the model; default: from config.json, if model.path is a folder",
    )
    parser.add_argument(
        "--prompt-tokens", type=int, help="tokens per prompt; default: data.max_prompt_tokens"
    )
    parser.add_argument(
        "--response-tokens",
        type=int,
        help="tokens per response; default: rollout.max_response_tokens",
    )
    rates = (
        ("--gpu-gib", Rates.gib, "GiB of memory per GPU"),
        ("--tflops", Rates.tflops, "TFLOP/s per GPU that training reaches"),
        ("--bandwidth", Rates.bandwidth, "TB/s of a GPU's memory, for decoding"),
        ("--network", Rates.network, "GB/s between a GPU and the others"),
    )
    for option, default, text in rates:
        parser.add_argument(
            option, type=float, default=default, help=f"{text} (default %(default)g)"
        )


def run(
    chosen: argparse.Namespace, recipe: str | None, overrides: Sequence[tuple[str, str]]
) -> str:
    """The table for the chosen options and settings, or what would make the recipe fit."""
    config = load_config(recipe, overrides)
    gpus = _numbers_of_gpus(chosen.gpus, config)
    prompt = chosen.prompt_tokens
    if prompt is None:
        prompt = config.data.max_prompt_tokens
    response = chosen.response_tokens
    if response is None:
        response = config.rollout.max_response_tokens
    positive = {
        "tflops": chosen.tflops,
        "bandwidth": chosen.bandwidth,
        "network": chosen.network,
        "gpu_gib": chosen.gpu_gib,
        "prompt_tokens": prompt,
        "response_tokens": response,
    }
    for name, number in positive.items():
        if not 0 < number < math.inf:
            raise TelescopeError(f"--{name.replace('_', '-')} {number:g}: give a positive number")
    rates = Rates(chosen.tflops, chosen.bandwidth, chosen.network, chosen.gpu_gib)
    job = _job(config, 1, prompt, response, rates, shape=chosen.shape)

    def changed(settings: fit.Settings) -> Job:
        return replace(job, config=load_config(recipe, [*overrides, *settings]))

    if chosen.suggest:
        if max(gpus) > 1 and (chosen.gpus or others(config)):
            raise TelescopeError(
                f"--suggest is about one GPU, and this plan has {max(gpus)}: leave out --gpus, "
                "ray.samplers, ray.critic_workers and ray.reward_workers"
            )
        return fit.suggestion(changed)
    return table([replace(job, gpus=number) for number in gpus])


def plan_of(config: Config, prompt_tokens: int) -> str:
    """The table of a config on the GPUs that it asks for."""
    response_tokens = config.rollout.max_response_tokens
    return table([_job(config, all_gpus(config), prompt_tokens, response_tokens, Rates())])


def _job(
    config: Config, gpus: int, prompt: int, response: int, rates: Rates, shape: str | None = None
) -> Job:
    """A config on so many GPUs. `shape` names that of the actor."""
    actor = _actor_shape(config, shape)
    critic = actor if config.credit.by_critic else NO_CRITIC
    if config.model.critic_path:
        critic = read_shape(config.model.critic_path) or actor
    reward = None
    if config.reward.model is not None:
        reward = read_shape(config.reward.model) or actor
    return Job(config, gpus, actor, critic, prompt, response, rates, reward)


def _numbers_of_gpus(text: str | None, config: Config) -> list[int]:
    for_one = one_process_settings(config)
    not_training = others(config)
    if text is None:
        if not_training:
            return [all_gpus(config)]
        return [1] if for_one else [1, 8, 64, 512]
    try:
        gpus = [int(number) for number in text.split(",")]
    except ValueError:
        gpus = []
    if min(gpus, default=0) <= 0:
        raise TelescopeError(f"--gpus {text}: give positive numbers, such as --gpus 1,8,64")
    if for_one and max(gpus) > 1:
        raise TelescopeError(f"--gpus {text}: {for_one[0]} is for one process; leave out --gpus")
    if min(gpus) <= not_training:
        raise TelescopeError(
            f"--gpus {text}: {not_training} GPUs sample, train the critic or score, so none of "
            f"{min(gpus)} is left to train: give more"
        )
    return gpus


def _actor_shape(config: Config, name: str | None) -> Shape:
    path = config.model.path
    if name is None and path == "smollm2":
        name = "135M"
    shape = SHAPES[name] if name else read_shape(path)
    if shape is None:
        raise TelescopeError(
            f"model.path = {path!r} is no folder with a config.json: "
            f"name a shape, --shape {'|'.join(SHAPES)}"
        )
    return shape
