"""On Ray as in process: the same batch, the same updates, the same weights, whatever the number of workers."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from telescope.build import Roles, build_data, build_local_roles
from telescope.config import Config
from telescope.credit import compute_advantages
from telescope.errors import TelescopeError, WorkerError
from telescope.ledger import samples
from telescope.ledger.writer import Ledger
from telescope.models import shards
from telescope.models.load import load_tokenizer, quiet
from telescope.run.checkpoint import check, list_checkpoints, shards_of
from telescope.run.export import export_run
from telescope.scale import ray as on_ray
from telescope.trainer import Trainer
from tests.fakes import read_shards, tiny_config, write_tiny_model

ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")

SETTINGS = (("actor.epochs", "2"), ("actor.minibatches", "2"), ("critic.epochs", "2"), ("critic.minibatches", "3"),
            ("rollout.batch_size", "7"), ("actor.micro_batch_tokens", "40"), ("critic.micro_batch_tokens", "40"),
            ("data.max_prompt_tokens", "20"), ("actor.kl_loss_coef", "0.1"), ("actor.entropy_coef", "0.01"))  # fmt: skip


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def config_for(folder: Path, model: Path, *more: tuple[str, str]) -> Config:
    return tiny_config(folder, model, *SETTINGS, *more)


def three_updates(roles: Roles, config: Config) -> dict:
    """Everything a run of three updates computes."""
    train, _ = build_data(config, roles.actor.tokenizer)
    ledger = Ledger(config, roles.actor.tokenizer)
    out: dict = {"columns": [], "metrics": [], "notes": []}
    for step in range(3):
        batch = roles.actor.generate_sequences(train.take(range(step, step + 7), seed=step))
        batch = roles.reward.compute_reward(
            roles.reference.compute_log_prob(roles.critic.compute_values(batch))
        )
        batch = compute_advantages(batch, config.credit, kl_coef=0.05)
        out["metrics"].append(
            roles.critic.update_critic(batch, ledger) | roles.actor.update_actor(batch, ledger)
        )
        out["columns"].append({name: batch[name] for name in batch})
        out["notes"].append(ledger.table(step, batch, kl_coef=0.05).to_pylist())
    for role in ("actor", "critic"):
        getattr(roles, role).save(shards_of(config.run_dir, role))
        out[role] = read_shards(config.run_dir, role)
    return out


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict:
    config = config_for(tmp_path_factory.mktemp("alone"), model)
    return three_updates(build_local_roles(config, reward), config)


def close(one, other, path: str = "") -> None:
    """Equal up to 1e-5, through dicts and lists."""
    if isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            close(one[key], other[key], f"{path}/{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            close(*pair, f"{path}/{number}")
    elif isinstance(one, torch.Tensor):
        torch.testing.assert_close(
            one, other, rtol=1e-4, atol=1e-5, msg=lambda text: f"{path}: {text}"
        )
    elif isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-4, abs=1e-5), path
    else:
        assert one == other, path


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1},
        {"workers": 4},
        {"workers": 4, "fsdp_size": 2},
        {"workers": 2, "critic_workers": 1},
    ],
    ids=["one", "four", "two-copies-of-two-slices", "critic-apart"],
)
def test_ray_equals_local(
    settings: dict[str, int], alone: dict, tmp_path: Path, model: Path
) -> None:
    """Values, log-probs, advantages, every loss term, metrics, gradients' moments: of 7 rows in minibatches of 2 or 3, so that some
    worker has none."""
    config = config_for(
        tmp_path,
        model,
        ("backend", "ray"),
        *((f"ray.{name}", str(value)) for name, value in settings.items()),
    )
    roles = on_ray.build_roles(config, reward)
    try:
        close(alone, three_updates(roles, config))
    finally:
        roles.close()


def test_ray_equals_local_with_lora(tmp_path: Path, model: Path) -> None:
    """Slices of frozen weights and of adapters; the reference is the slices of the actor without the latter."""
    pytest.importorskip("peft")
    lora = (
        ("model.lora_rank", "3"),
        ("actor.lr", "1e-2"),
        ("model.gradient_checkpointing", "true"),
    )
    here = config_for(tmp_path / "here", model, *lora)
    there = config_for(tmp_path, model, *lora, ("backend", "ray"), ("ray.workers", "2"))
    roles = on_ray.build_roles(there, reward)
    try:
        close(three_updates(build_local_roles(here, reward), here), three_updates(roles, there))
    finally:
        roles.close()


def test_ray_equals_local_with_a_histogram_of_values(tmp_path: Path, model: Path) -> None:
    """A head of seven outputs over two workers, one of which holds a row more."""
    bins = (("critic.loss", "hl_gauss"), ("critic.bins", "7"), ("critic.value_low", "-1"))
    here = config_for(tmp_path / "here", model, *bins)
    there = config_for(tmp_path, model, *bins, ("backend", "ray"), ("ray.workers", "2"))
    roles = on_ray.build_roles(there, reward)
    try:
        close(three_updates(build_local_roles(here, reward), here), three_updates(roles, there))
    finally:
        roles.close()


def test_a_random_value_head_is_the_same_on_ray(tmp_path: Path, model: Path) -> None:
    random = (("critic.head_init", "normal"), ("seed", "3"))
    here = config_for(tmp_path / "here", model, *random)
    there = config_for(tmp_path, model, *random, ("backend", "ray"), ("ray.workers", "2"))
    placed, alone = on_ray.build_roles(there, reward), build_local_roles(here, reward)
    try:
        batch = alone.actor.generate_sequences(
            build_data(here, alone.actor.tokenizer)[0].take(range(7), seed=0)
        )
        values, expected = (
            roles.critic.compute_values(batch)["values"] for roles in (placed, alone)
        )
    finally:
        placed.close()
    torch.testing.assert_close(values, expected)
    assert expected.abs().max() > 0.01
    assert placed.origin == alone.origin


def test_frozen_bfloat16_weights_are_sliced_beside_float32_adapters(
    tmp_path: Path, model: Path
) -> None:
    pytest.importorskip("peft")
    lora = (("model.lora_rank", "3"), ("model.dtype", "bfloat16"), ("actor.lr", "1e-2"))
    here = config_for(tmp_path / "here", model, *lora)
    there = config_for(tmp_path, model, *lora, ("backend", "ray"), ("ray.workers", "2"))
    roles = on_ray.build_roles(there, reward)
    try:
        ours, alone = (
            three_updates(r, c)["columns"][0]
            for r, c in ((roles, there), (build_local_roles(here, reward), here))
        )
    finally:
        roles.close()
    torch.testing.assert_close(ours["ref_log_prob"], alone["ref_log_prob"], rtol=0.05, atol=0.05)


def test_a_checkpoint_of_two_workers_goes_on_in_one_process_and_then_in_four(
    tmp_path: Path, model: Path
) -> None:
    def train(steps: int, backend: str, name: str, workers: int = 1) -> Trainer:
        more = (
            ("steps", str(steps)),
            ("backend", backend),
            ("ray.workers", str(workers)),
            ("name", name),
            ("eval.samples", "4"),
        )
        trainer = Trainer(config_for(tmp_path, model, *more), reward=reward, resume=True)
        trainer.fit()
        if backend == "ray":
            trainer.roles.close()
        return trainer

    train(3, "local", "alone")
    for steps, backend, workers in ((1, "ray", 2), (2, "local", 1), (3, "ray", 4)):
        train(steps, backend, "mixed", workers)
    kinds = ("timing/", "perf/", "eval/", "data/")
    runs = []
    for name in ("alone", "mixed"):
        history = Trainer(
            config_for(tmp_path, model, ("steps", "3"), ("name", name)), reward=reward, resume=True
        ).history()
        runs.append(
            [
                {k: v for k, v in row.items() if not k.startswith(kinds)}
                for row in history
                if "actor/pg_loss" in row
            ]
        )
    close(*runs)


def test_a_bfloat16_checkpoint_is_the_same_bit_for_bit_wherever_it_is_loaded(
    tmp_path: Path, model: Path
) -> None:
    """Written by two workers, loaded and written again by one process, by two copies of two slices, and exported."""
    bf16 = (("model.dtype", "bfloat16"), ("steps", "1"), ("eval.samples", "4"))
    config = config_for(tmp_path, model, *bf16, ("backend", "ray"), ("ray.workers", "2"))
    trainer = Trainer(config, reward=reward)
    trainer.fit()
    trainer.roles.close()
    (path,) = list_checkpoints(trainer.checkpoints)
    saved = {role: read_shards(path, role) for role in ("actor", "critic")}
    name, weight = next(
        (name, of) for name, of in saved["actor"].items() if name.endswith("q_proj.weight")
    )
    assert not torch.equal(weight, weight.bfloat16().float())  # in full precision

    alone = build_local_roles(config_for(tmp_path, model, *bf16), reward)
    apart = on_ray.build_roles(
        config_for(
            tmp_path, model, *bf16, ("backend", "ray"), ("ray.workers", "4"), ("ray.fsdp_size", "2")
        ),
        reward,
    )
    for where, roles in (("alone", alone), ("apart", apart)):
        check(path, origin=roles.origin)  # the fingerprints are the same too
        for role in ("actor", "critic"):
            getattr(roles, role).load(shards_of(path, role))
            getattr(roles, role).save(shards_of(tmp_path / where, role))
            again = read_shards(tmp_path / where, role)
            assert again.keys() == saved[role].keys()
            assert all(torch.equal(again[name], value) for name, value in saved[role].items())
    apart.close()
    rounded = alone.actor.model.get_parameter(name.removeprefix("weight/"))
    assert torch.equal(rounded, weight.bfloat16())

    export_run(config.run_dir, tmp_path / "exported")
    assert torch.equal(
        load_file(tmp_path / "exported" / "model.safetensors")[name.removeprefix("weight/")],
        weight.bfloat16(),
    )


def test_a_reward_model_in_workers_of_its_own_scores_as_one_in_process(
    tmp_path: Path, model: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    with quiet():
        torch.manual_seed(0)
        scorer = AutoModelForSequenceClassification.from_pretrained(model, num_labels=1)
        torch.nn.init.normal_(scorer.score.weight)
        scorer.save_pretrained(tmp_path / "rm")
        load_tokenizer(str(model)).save_pretrained(tmp_path / "rm")
    config = config_for(tmp_path, model, ("reward.model", str(tmp_path / "rm")))
    near = build_local_roles(config)
    on_two = config_for(
        tmp_path,
        model,
        ("reward.model", str(tmp_path / "rm")),
        ("backend", "ray"),
        ("ray.reward_workers", "2"),
    )
    far = on_ray.build_roles(on_two)
    try:
        prompts = build_data(config, near.actor.tokenizer)[0].take(range(7), seed=0)
        batch = near.actor.sample(prompts)
        one, other = (roles.reward.score(part) for roles, part in ((near, batch), (far, batch)))
        assert one.info["score/model"] == pytest.approx(other.info["score/model"], abs=1e-5)
        alone = batch.rows(torch.tensor([3]))  # fewer rows than workers
        assert far.reward.score(alone).info["score/model"] == pytest.approx(
            one.info["score/model"][3:4], abs=1e-5
        )
    finally:
        far.close()


def test_a_refilled_run_on_ray_is_the_one_in_process(tmp_path: Path, model: Path) -> None:
    def picky(prompts, response_ids):
        return [
            len(set(ids)) / 6 if sum(map(ord, p)) % 3 == 0 else 1.0
            for p, ids in zip(prompts, response_ids, strict=True)
        ]

    def train(name: str, *more: tuple[str, str]) -> list[dict]:
        settings = [
            ("name", name),
            ("rollout.n", "2"),
            ("rollout.dynamic_sampling", "2"),
            ("eval.samples", "1"),
            ("reward.normalise", "true"),
        ]
        trainer = Trainer(config_for(tmp_path, model, *settings, *more), reward=picky)
        trainer.held_out = None
        trainer.fit()
        trainer.roles.close()
        return history(trainer)

    one, other = train("one"), train("two", ("backend", "ray"), ("ray.workers", "2"))
    assert any(row.get("rollout/refilled_groups") for row in one)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        assert all(a[key] == pytest.approx(b[key], abs=1e-4) for key in a)


def test_more_workers_than_the_cluster_has_room_for_are_refused(
    tmp_path: Path, model: Path
) -> None:
    with pytest.raises(
        TelescopeError, match=r"ray\.workers = 99 needs 99 CPUs, and the cluster has 4 on 1 node"
    ):
        on_ray.build_roles(
            config_for(tmp_path, model, ("backend", "ray"), ("ray.workers", "99")), reward
        )
    with pytest.raises(
        TelescopeError,
        match=r"ray\.workers = 3 \+ ray\.critic_workers = 2 needs 5 CPUs, and the cluster has 4 on 1 node",
    ):
        on_ray.build_roles(
            config_for(
                tmp_path,
                model,
                ("backend", "ray"),
                ("ray.workers", "3"),
                ("ray.critic_workers", "2"),
            ),
            reward,
        )


def test_workers_whose_place_is_taken_are_waited_for_and_then_given_up(
    tmp_path: Path, model: Path
) -> None:
    taken = ray.util.placement_group([{"CPU": 1}] * 2)
    ray.get(taken.ready())
    told = "no room for the 3 workers of actor, reference, critic within 2 s .*: they need 3 CPUs, 2 CPUs are free, the cluster has 4 CPUs"
    with pytest.raises(WorkerError, match=told):
        on_ray.build_roles(
            config_for(
                tmp_path, model, ("backend", "ray"), ("ray.workers", "3"), ("ray.timeout", "2")
            ),
            reward,
        )
    ray.util.remove_placement_group(taken)


def history(trainer: Trainer) -> list[dict]:
    return [
        {k: v for k, v in row.items() if not k.startswith(("timing/", "perf/"))}
        for row in trainer.history()
    ]


def train_on_two(
    folder: Path,
    model: Path,
    scoring: Callable[..., list[float]],
    every: int,
    running: list[Trainer],
) -> Trainer:
    settings = (
        ("backend", "ray"),
        ("ray.workers", "2"),
        ("steps", "4"),
        ("checkpoint.every", str(every)),
        ("eval.samples", "4"),
    )
    trainer = Trainer(config_for(folder, model, *settings), reward={"score": scoring})
    running.append(trainer)
    trainer.fit()
    trainer.roles.close()
    return trainer


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, model: Path) -> list[dict]:
    return history(train_on_two(tmp_path_factory.mktemp("unbroken"), model, reward, 0, []))


@pytest.mark.parametrize("every", [1, 0])
def test_a_run_whose_worker_is_killed_goes_on_by_itself_to_the_same_metrics(
    every: int,
    tmp_path: Path,
    model: Path,
    unbroken: list[dict],
    capsys: pytest.CaptureFixture[str],
) -> None:
    running: list[Trainer] = []

    def deadly(response_ids):
        trainer = running[0]
        if trainer.step == 2 and not trainer.restarts:  # in the third step
            os.kill(ray.get(trainer.roles.actor.group.workers[1].pid.remote()), signal.SIGKILL)
        return reward(response_ids)

    killed = train_on_two(tmp_path, model, deadly, every, running)
    assert killed.restarts == 1
    close(unbroken, history(killed))
    out = capsys.readouterr().out
    assert "a worker died during" in out or "a worker lost touch with another during" in out
    assert f"restart 1 of 3, from {'step_000002' if every else 'the beginning'}" in out


def test_after_too_many_restarts_the_run_ends_with_what_to_do(tmp_path: Path, model: Path) -> None:
    def deadly(response_ids):
        os.kill(ray.get(trainer.roles.actor.group.workers[0].pid.remote()), signal.SIGKILL)
        return reward(response_ids)

    config = config_for(
        tmp_path, model, ("backend", "ray"), ("ray.workers", "1"), ("ray.max_restarts", "1")
    )
    trainer = Trainer(config, reward={"score": deadly})
    with pytest.raises(
        TelescopeError,
        match=r"a worker .*; 1 restarts \(ray.max_restarts\) did not help: .* --resume",
    ):
        trainer.fit()
    trainer.roles.close()


def test_workers_write_into_the_run_folder_wherever_they_live(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the cluster was started elsewhere
    settings = (
        ("dir", "runs"),
        ("backend", "ray"),
        ("ray.workers", "1"),
        ("steps", "1"),
        ("eval.samples", "4"),
    )
    trainer = Trainer(config_for(tmp_path, Path(os.path.relpath(model)), *settings), reward=reward)
    trainer.fit()
    saved = tmp_path / "runs" / "run" / "checkpoints" / "step_000001"
    assert all(shards.is_whole(shards_of(saved, role)) for role in ("actor", "critic"))
    trainer.roles.close()


def test_what_a_broken_step_noted_is_not_recorded(tmp_path: Path, model: Path) -> None:
    config = config_for(
        tmp_path,
        model,
        ("backend", "ray"),
        ("ray.workers", "1"),
        ("steps", "2"),
        ("eval.samples", "4"),
    )
    trainer = Trainer(config, reward=reward)
    update = on_ray.RayActor.update_actor

    def deadly(self, batch, ledger=None):
        if trainer.step == 1 and not trainer.restarts:
            os.kill(ray.get(self.group.workers[0].pid.remote()), signal.SIGKILL)
        return update(self, batch, ledger)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_ray.RayActor, "update_actor", deadly)
        trainer.fit()
    trainer.roles.close()
    assert trainer.restarts == 1
    updates = samples(config.run_dir, 2)[0].critic_updates
    assert [(update.epoch, update.minibatch) for update in updates] == sorted(
        {(u.epoch, u.minibatch) for u in updates}
    )
