"""Several ranks against one process, on the CPU or on one GPU: a table row per case.

    python -m benchmarks.ranks --device cpu
    python -m benchmarks.ranks --device cuda             # every rank on the same GPU, over gloo

A case computes two updates of the same responses in one process and in ranks: log-probs, values,
advantages, losses and gradient norms of each, then log-probs and values of a third batch. The
table has the largest difference. In float32 it may be 1e-4. In bfloat16 it may be twice what
bfloat16 changes in one process, the difference of its own run from the one in float32: either of
two runs may be that far from the exact one.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from telescope.batch import TokenBatch
from telescope.build import Roles, build_local_roles, build_ray_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.data.build import build_data
from telescope.run.checkpoint import shards_of
from telescope.trainer import Trainer
from tests.tiny import tiny_config

ROWS = 12
FLOAT32 = 1e-4
COLUMNS = ("old_log_probs", "ref_log_prob", "values", "advantages", "returns")
METRICS = ("actor/grad_norm", "critic/grad_norm", "actor/pg_loss", "critic/vf_loss")
SETTINGS = {
    "rollout.batch_size": str(ROWS),
    "rollout.max_response_tokens": "8",
    "rollout.cuda_graphs": "false",
    "data.max_prompt_tokens": "20",
    "actor.old_log_probs": "forward",
    "actor.micro_batch_tokens": "80",
    "critic.micro_batch_tokens": "80",
    "actor.minibatches": "2",
    "actor.lr": "2e-4",
    "critic.lr": "2e-4",
    "actor.kl_loss_coef": "0.1",
    "eval.samples": "1",
}
BF16 = {"model.dtype": "bfloat16"}
LORA = {"model.lora_rank": "4", "actor.lr": "1e-2", "critic.lr": "1e-2"}


@dataclass
class Bench:
    """The machine, the model, and what one process computed."""

    device: str
    folder: Path
    model: Path
    most_ranks: int = 6
    known: dict[tuple[tuple[str, str], ...], dict[str, Any]] = field(default_factory=dict)

    def config(self, name: str, **settings: str) -> Config:
        chosen = SETTINGS | {"device": self.device, "name": name} | settings
        return tiny_config(self.folder, self.model, *chosen.items())

    def on_ray(self, name: str, **settings: str) -> Config:
        shared = {"ray.workers_per_gpu": str(self.most_ranks)} if self.device == "cuda" else {}
        return self.config(name, **shared, backend="ray", **settings)

    def alone(self, **settings: str) -> dict[str, Any]:
        """What one process computes with these settings of the model."""
        key = tuple(sorted(settings.items()))
        if key not in self.known:
            roles = build_local_roles(self.config("alone", **settings), reward)
            self.known[key] = two_updates(roles, self.config("alone", **settings), self.batches)
        return self.known[key]

    @property
    def batches(self) -> list[TokenBatch]:
        """Responses for two updates and a look at what they changed."""
        key = (("responses", ""),)
        if key not in self.known:
            config = self.config("alone")
            actor = build_local_roles(config, reward).actor
            train, _ = build_data(config, actor.tokenizer)
            drawn = [actor.sample(train.take(range(n, n + ROWS), seed=n)) for n in range(3)]
            self.known[key] = {"batches": [one.to(torch.device("cpu")) for one in drawn]}
        found: list[TokenBatch] = self.known[key]["batches"]
        return found

    def tolerance(self, **settings: str) -> float:
        """1e-4, or twice what bfloat16 changes in one process."""
        if settings.get("model.dtype") != "bfloat16":
            return FLOAT32
        exact = {name: value for name, value in settings.items() if name != "model.dtype"}
        return 2 * difference(self.alone(**settings), self.alone(**exact))


def reward(response_ids: Any) -> list[float]:
    return [len(set(ids)) / 8 for ids in response_ids]


# ---- what is compared


def two_updates(roles: Roles, config: Config, batches: list[TokenBatch]) -> dict[str, Any]:
    """Columns and metrics of two updates, then log-probs and values of the third batch."""
    found = look(roles, batches[2], "before")
    for number in (0, 1):
        batch = one_update(roles, config, batches[number], found, number)
        found |= {f"{number} {name}": batch[name].float().cpu() for name in COLUMNS}
    return found | look(roles, batches[2], "after")


def one_update(
    roles: Roles, config: Config, sampled: TokenBatch, found: dict[str, Any], number: int
) -> TokenBatch:
    batch = roles.critic.compute_values(with_log_probs(roles, sampled))
    batch = roles.reward.compute_reward(roles.reference.compute_log_prob(batch))
    batch = compute_advantages(batch, config.credit, kl_coef=0.05)
    metrics = roles.critic.update_critic(batch) | roles.actor.update_actor(batch)
    found |= {f"{number} {name}": float(metrics[name]) for name in METRICS}
    return batch


def look(roles: Roles, sampled: TokenBatch, when: str) -> dict[str, Any]:
    """Log-probs and values of the weights as they are now."""
    batch = roles.critic.compute_values(with_log_probs(roles, sampled))
    return {
        f"{when} old_log_probs": batch["old_log_probs"].float().cpu(),
        f"{when} values": batch["values"].float().cpu(),
    }


def with_log_probs(roles: Roles, sampled: TokenBatch) -> TokenBatch:
    actor = roles.actor
    if hasattr(actor, "group"):
        return actor.group.map_rows("actor", "with_old_log_probs", sampled)
    return actor.with_old_log_probs(sampled.to(actor.device))


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """The largest difference; of numbers above 1 relative to them."""
    return max(differences(one, other).values())


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, float]:
    found = {}
    for name in one.keys() | other.keys():
        a = torch.as_tensor(one[name], dtype=torch.float64)
        b = torch.as_tensor(other[name], dtype=torch.float64)
        apart = (a - b).abs() / b.abs().clamp(min=1.0)
        found[name] = float(apart.nan_to_num(nan=math.inf).max())
    return found


@contextlib.contextmanager
def ranks(config: Config) -> Any:
    """The roles of a config in workers, which end afterwards."""
    roles = build_ray_roles(config, reward)
    try:
        yield roles
    finally:
        roles.close()


# ---- cases: each returns (difference, tolerance, note)

Result = tuple[float, float, str]
Case = Callable[[Bench], Result]


def updates(**settings: str) -> Case:
    """Two updates in ranks, against one process."""

    def case(bench: Bench) -> Result:
        placed = {key: value for key, value in settings.items() if key.startswith("ray.")}
        model = {key: value for key, value in settings.items() if key not in placed}
        expected = bench.alone(**model)
        config = bench.on_ray("ranks", **settings)
        with ranks(config) as roles:
            got = two_updates(roles, config, bench.batches)
            note = packed_note(roles)
        name = "old_log_probs"
        moved = difference({"": expected[f"after {name}"]}, {"": expected[f"before {name}"]})
        tolerance = bench.tolerance(**model)
        assert moved > tolerance, f"updates change {moved:.1e}: the case could not fail"
        apart = differences(got, expected)
        worst = max(apart, key=lambda name: apart[name])
        return apart[worst], tolerance, f"{note}; largest: {worst}"

    return case


def packed_note(roles: Roles) -> str:
    """Whether the ranks' rows are packed."""
    import ray

    workers = roles.actor.group.workers
    calls = [
        worker.__ray_call__.remote(lambda self: self.roles["actor"].learner.padded)
        for worker in workers
    ]
    return "padded" if any(ray.get(calls)) else "packed"


def samplers(engine: str, **settings: str) -> Case:
    """Log-probs that the sampler says, against those of the ranks, over two updates."""

    def case(bench: Bench) -> Result:
        if engine == "vllm" and importlib.util.find_spec("vllm") is None:
            raise CannotRunError("vLLM is not installed")
        given = {"ray.workers": "2", "ray.samplers": "1", "rollout.engine": engine}
        graphs = {"rollout.cuda_graphs": "true"}
        config = bench.on_ray("samplers", **given, **graphs, **settings)
        largest = 0.0
        with ranks(config) as roles:
            train, _ = build_data(config, roles.actor.tokenizer)
            for number in range(3):
                prompts = train.take(range(number, number + ROWS), seed=number)
                batch = roles.actor.generate_sequences(prompts)
                assert batch["policy_version"].unique().tolist() == [number]
                apart = batch["rollout_log_probs"] - batch["old_log_probs"]
                largest = max(largest, float(apart.abs().max()))
                one_update(roles, config, batch, {}, number)
        return largest, bench.tolerance(**settings), ""

    return case


def moved_checkpoints(bench: Bench) -> Result:
    """An update on two ranks, the next in one process, the values after it on four ranks."""
    expected = bench.alone()
    found: dict[str, Any] = {}
    folders = [bench.folder / f"moved-{number}" for number in (0, 1)]
    first = bench.on_ray("two", **{"ray.workers": "2"})
    with ranks(first) as roles:
        one_update(roles, first, bench.batches[0], found, 0)
        save(roles, folders[0])
    alone = build_local_roles(bench.config("one"), reward)
    load(alone, folders[0])
    one_update(alone, bench.config("one"), bench.batches[1], found, 1)
    save(alone, folders[1])
    with ranks(bench.on_ray("four", **{"ray.workers": "4"})) as roles:
        load(roles, folders[1])
        found |= look(roles, bench.batches[2], "after")
    return difference(found, {name: expected[name] for name in found}), FLOAT32, ""


def save(roles: Roles, folder: Path) -> None:
    for role in ("actor", "critic"):
        getattr(roles, role).save(shards_of(folder, role))


def load(roles: Roles, folder: Path) -> None:
    for role in ("actor", "critic"):
        getattr(roles, role).load(shards_of(folder, role))


def killed_rank(bench: Bench) -> Result:
    """Metrics of three steps on two ranks, one of which is killed, against an undisturbed run."""
    import ray

    def train(name: str, kills: bool) -> list[dict[str, Any]]:
        config = bench.on_ray(name, **{"ray.workers": "2", "steps": "3"})
        running: list[Trainer] = []

        def deadly(response_ids: Any) -> list[float]:
            if kills and running and running[0].step == 1 and not running[0].restarts:
                pid = ray.get(running[0].roles.actor.group.workers[1].pid.remote())
                os.kill(pid, signal.SIGKILL)
            return reward(response_ids)

        trainer = Trainer(config, reward={"score": deadly})
        running.append(trainer)
        try:
            trainer.fit()
        finally:
            trainer.roles.close()
        assert trainer.restarts == int(kills)
        return [row for row in trainer.history() if "actor/pg_loss" in row]

    rows, expected = train("killed", True), train("undisturbed", False)
    assert [row["step"] for row in rows] == [1, 2, 3]
    largest = 0.0
    for row, other in zip(rows, expected, strict=True):
        names = [name for name in METRICS if name in row]
        apart = difference({n: row[n] for n in names}, {n: other[n] for n in names})
        largest = max(largest, apart)
    return largest, FLOAT32, "restarted once"


class CannotRunError(Exception):
    """A case that this machine cannot run."""


TWO, FOUR = {"ray.workers": "2"}, {"ray.workers": "4"}
SHARED = {"ray.sequence_parallel_size": "2"}
CASES: dict[str, Case] = {
    "2 ranks, float32": updates(**TWO),
    "4 ranks, float32": updates(**FOUR),
    "2 ranks, bfloat16": updates(**TWO, **BF16),
    "4 ranks, bfloat16": updates(**FOUR, **BF16),
    "2 copies of 2 shards, bfloat16": updates(**FOUR, **BF16, **{"ray.fsdp_size": "2"}),
    "2 ranks, critic on 2 others": updates(**TWO, **{"ray.critic_workers": "2"}),
    "4 ranks, 2 share a row": updates(**FOUR, **SHARED),
    "4 ranks, 2 share a row, bfloat16": updates(**FOUR, **SHARED, **BF16),
    "LoRA, 2 ranks, float32": updates(**TWO, **LORA),
    "LoRA, 2 ranks, bfloat16": updates(**TWO, **LORA, **BF16),
    "a sampler, float32": samplers("torch"),
    "a sampler, bfloat16": samplers("torch", **BF16),
    "vLLM as sampler, bfloat16": samplers("vllm", **BF16),
    "checkpoint 2 → 1 → 4 ranks": moved_checkpoints,
    "a killed rank": killed_rank,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--model", default="builtin", help="folder of another model")
    parser.add_argument("--only", default="", help="run cases whose name has this text")
    options = parser.parse_args()
    import ray

    chosen = {name: case for name, case in CASES.items() if options.only in name}
    ray.init(address="local", num_cpus=5, include_dashboard=False, log_to_driver=False)
    print(f"torch {torch.__version__}, ray {ray.__version__}, {describe(options.device)}")
    print(f"{'case':<36}{'difference':>12}{'tolerance':>12}  {'ok':<6}{'seconds':>8}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options.device, Path(folder), Path(options.model))
        failed = [name for name, case in chosen.items() if not run(name, case, bench)]
    ray.shutdown()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def run(name: str, case: Case, bench: Bench) -> bool:
    """Prints the row of a case; returns whether it passed or was skipped."""
    start = time.monotonic()
    try:
        largest, tolerance, note = case(bench)
        ok = largest <= tolerance
        cells = f"{largest:>12.1e}{tolerance:>12.1e}  {'yes' if ok else 'NO':<6}"
    except CannotRunError as reason:
        ok, note = True, str(reason)
        cells = f"{'–':>12}{'–':>12}  {'–':<6}"
    except Exception as error:  # the other cases still run
        ok, note = False, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        cells = f"{'–':>12}{'–':>12}  {'NO':<6}"
    print(f"{name:<36}{cells}{time.monotonic() - start:>8.1f}  {note}", flush=True)
    return ok


def describe(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else f"{os.cpu_count()} CPU cores"


if __name__ == "__main__":
    main()
