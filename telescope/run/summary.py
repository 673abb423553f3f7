"""What a run tells a person: its roles and warnings at the start, its results at the end."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from telescope.config import Config
from telescope.config.unused import unused
from telescope.models.flops import Cost
from telescope.rewards.remote import holds_secret
from telescope.roles.reward import Reward
from telescope.run.timing import expected_hours

_SECRET = re.compile("auth|key|token|secret|password|cookie", re.IGNORECASE)
"""What a header that holds a key is called."""


def describe_roles(config: Config, reward: Reward) -> list[str]:
    """Returns one line for each role: what it is made of."""
    model = config.model
    path = f"{model.path}, warm-started" if config.warm_start.files else model.path
    lora = f" + LoRA adapters of rank {model.lora_rank}" if model.lora_rank else ""
    reference = f"{model.reference_path or path}, frozen"
    if lora and not model.reference_path:
        reference = "the actor with its adapters off"
    names = list(reward.functions) or ["environment"]
    parts = [f"{reward.weights.get(name, 1.0):g} × {name}" for name in names]
    return [
        f"actor      {path}{lora}",
        f"critic     {_describe_critic(config, lora)}",
        f"reference  {reference}",
        f"reward     {', '.join(parts)}",
    ]


def _describe_critic(config: Config, lora: str) -> str:
    if not config.credit.by_critic:
        return "none: values are 0"
    bins = config.critic.histogram
    head = f"value head of {bins}" if bins else "value head"
    if config.critic.head_init == "normal":
        head = f"random {head}"
    reads = f", reads {config.critic.reads} before the prompt" if config.critic.reads else ""
    return f"{config.model.critic_path or config.model.path}{lora} + {head}{reads}"


def warnings(
    config: Config, done: int, cost: Cost | None, prompts: Sequence[Sequence[int]]
) -> list[str]:
    """Lists what may surprise somebody who starts this run after `done` steps.

    `cost` is the actor's if it runs on a CPU here.
    """
    found = unused(config)
    if config.lacks_data:
        found.append(
            "no data is named, so the prompts are the built-in ones, such as 请问1+1=2？: "
            "set data.files or data.task"
        )
    for name, headers in config.reward.headers.items():
        for header, value in headers.items():
            if "${" not in value and _SECRET.search(header):
                found.append(
                    f"reward.headers.{name}.{header} seems to be a key, and config.toml will hold "
                    "it: write ${NAME} in its place, and set that variable in the environment"
                )
    if any(holds_secret(spec) for spec in config.reward.functions):
        found.append(
            "reward.functions has a key in its address, and config.toml will hold it: "
            "write ${NAME} in its place, and set that variable in the environment"
        )
    if cost is not None:
        hours = expected_hours(config, cost, prompts, steps=config.steps - done)
        if hours > 1:
            found.append(
                f"no GPU here: this may take up to {hours:.0f} hours; "
                "--smoke shows in minutes whether the recipe works"
            )
    credit = config.credit
    if credit.kl_coef and credit.definition.kl_in == "loss":
        found.append(
            f"credit.kl_coef = {credit.kl_coef:g}: {credit.estimator} compares outcomes with their "
            "KL in them, so a group of equal scores trains on differences of KL alone: "
            "set it to 0, and actor.kl_loss_coef instead"
        )
    if 0 < config.steps <= config.critic_warmup:
        found.append(
            f"critic_warmup = {config.critic_warmup} lasts for all {config.steps} steps: "
            "the critic learns, the policy does not"
        )
    return found


def summarise(
    config: Config,
    step: int,
    history: Sequence[Mapping[str, Any]],
    report: Path | None,
    best: str = "",
) -> str:
    """Tells held-out accuracy before and after, the best one, and what to look at next."""
    run = config.run_dir
    named = shlex.quote(str(run))
    lines = [f"trained {step} steps: {run}"]
    evaluated = [row for row in history if any(_is_accuracy(name) for name in row)]
    if evaluated:
        lines.append("held-out accuracy    before   after")
        for name in filter(_is_accuracy, evaluated[-1]):
            shown = name.removeprefix("eval/").removesuffix("_accuracy")
            before = evaluated[0].get(name, float("nan"))
            lines.append(f"  {shown:17}  {before:7.3f} {evaluated[-1][name]:7.3f}")
    if best:
        lines.append(f"{config.eval.best}: {best}, whose checkpoint is kept")
    command = _command()
    lines.append("look at next:")
    if report:
        lines.append(f"  {report}   open it in a browser: every token's numbers")
        lines.append(f"  {command} explain {named}   the same in the terminal, term by term")
    lines.append(f"  {command} view {named}   the page live, while a run goes on")
    lines.append(f"  {run / 'metrics.jsonl'}   every metric of every step (docs/metrics.md)")
    if (run / "checkpoints").is_dir():
        roles = "actor and critic" if config.credit.by_critic else "the actor"
        lines.append(f"  {command} export {named} DIR   Hugging Face folders of {roles}")
    return "\n".join(lines)


def _is_accuracy(name: str) -> bool:
    return name.startswith("eval/") and name.endswith("_accuracy")


def _command() -> str:
    """Returns how this user can call telescope: by name if it is on the PATH."""
    if shutil.which("telescope"):
        return "telescope"
    program = Path(sys.executable).parent / "telescope"
    here = Path.cwd()
    return str(program.relative_to(here) if program.is_relative_to(here) else program)
