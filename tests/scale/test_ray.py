"""On Ray as in process: the same batch, the same updates, the same weights, whatever the number of workers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from telescope.build import build_local_roles, build_ray_roles
from telescope.data.build import build_data
from telescope.models.load import load_tokenizer, quiet
from telescope.run.checkpoint import check, list_checkpoints, shards_of
from telescope.run.export import export_run
from telescope.trainer import Trainer
from tests.fakes import read_shards, write_tiny_model
from tests.scale.on_ray import close, config_for, reward, three_updates
from tests.scale.test_ray_failures import history

ray = pytest.importorskip("ray", reason="Ray comes with the extra `ray`")
pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, model: Path) -> dict:
    config = config_for(tmp_path_factory.mktemp("alone"), model)
    return three_updates(build_local_roles(config, reward), config)


@pytest.mark.parametrize(
    "settings",
    [
        {"workers": 1},
        {"workers": 4},
        {"workers": 4, "fsdp_size": 2},
        {"workers": 2, "critic_workers": 1},
        {"workers": 2, "sequence_parallel_size": 2},
        {"workers": 4, "sequence_parallel_size": 2, "fsdp_size": 2},
    ],
    ids=["one", "four", "two-copies-of-two-slices", "critic-apart", "shared-rows", "two-pairs"],
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
    roles = build_ray_roles(config, reward)
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
    roles = build_ray_roles(there, reward)
    try:
        close(three_updates(build_local_roles(here, reward), here), three_updates(roles, there))
    finally:
        roles.close()


def test_ray_equals_local_with_a_histogram_of_values_and_another_reference(
    tmp_path: Path, model: Path
) -> None:
    """A head of seven outputs over two workers, one of which holds a row more."""
    other = write_tiny_model(tmp_path / "other", seed=1)
    bins = (("critic.loss", "hl_gauss"), ("critic.bins", "7"), ("critic.value_low", "-1"))
    settings = (*bins, ("model.reference_path", str(other)))
    here = config_for(tmp_path / "here", model, *settings)
    there = config_for(tmp_path, model, *settings, ("backend", "ray"), ("ray.workers", "2"))
    roles = build_ray_roles(there, reward)
    try:
        close(three_updates(build_local_roles(here, reward), here), three_updates(roles, there))
    finally:
        roles.close()


def test_ray_equals_local_with_a_critic_that_reads_the_answer(tmp_path: Path, model: Path) -> None:
    reads = ("critic.reads", "answer")
    here = config_for(tmp_path / "here", model, reads)
    there = config_for(tmp_path, model, reads, ("backend", "ray"), ("ray.workers", "2"))
    roles = build_ray_roles(there, reward)
    try:
        close(three_updates(build_local_roles(here, reward), here), three_updates(roles, there))
    finally:
        roles.close()


def test_a_random_value_head_is_the_same_on_ray(tmp_path: Path, model: Path) -> None:
    random = (("critic.head_init", "normal"), ("seed", "3"))
    here = config_for(tmp_path / "here", model, *random)
    there = config_for(tmp_path, model, *random, ("backend", "ray"), ("ray.workers", "2"))
    placed, alone = build_ray_roles(there, reward), build_local_roles(here, reward)
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
    roles = build_ray_roles(there, reward)
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
    """The two shared their rows; the four do not."""

    def train(steps: int, backend: str, name: str, workers: int = 1, sharing: int = 1) -> Trainer:
        more = (
            ("steps", str(steps)),
            ("backend", backend),
            ("ray.workers", str(workers)),
            ("ray.sequence_parallel_size", str(sharing)),
            ("name", name),
            ("eval.samples", "4"),
        )
        trainer = Trainer(config_for(tmp_path, model, *more), reward=reward, resume=True)
        trainer.fit()
        if backend == "ray":
            trainer.roles.close()
        return trainer

    train(3, "local", "alone")
    for steps, backend, workers, sharing in (
        (1, "ray", 2, 2),
        (2, "local", 1, 1),
        (3, "ray", 4, 1),
    ):
        train(steps, backend, "mixed", workers, sharing)
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
    apart = build_ray_roles(
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
    far = build_ray_roles(on_two)

    def parts(batch):
        return [scores.parts["model"] for scores in batch.scores]

    try:
        prompts = build_data(config, near.actor.tokenizer)[0].take(range(7), seed=0)
        batch = near.actor.sample(prompts)
        one, other = (roles.reward.score(part) for roles, part in ((near, batch), (far, batch)))
        assert parts(one) == pytest.approx(parts(other), abs=1e-5)
        alone = batch.rows(torch.tensor([3]))  # fewer rows than workers
        assert parts(far.reward.score(alone)) == pytest.approx(parts(one)[3:4], abs=1e-5)
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
