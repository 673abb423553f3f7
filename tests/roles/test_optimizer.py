"""8-bit moments, and masters and moments in host memory: resumed exactly, with the same steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from telescope.build import build_local_roles
from telescope.config import Config
from telescope.errors import TelescopeError
from telescope.roles import learner
from telescope.trainer import Trainer
from tests.fakes import hand_batch, read_shards, tiny_config, write_tiny_model

MakeConfig = Callable[..., Config]

OFFLOAD = (
    ("actor.offload_optimizer", "true"),
    ("critic.offload_optimizer", "true"),
    ("model.offload_reference", "true"),
)
TWICE = (("actor.epochs", "2"), ("actor.minibatches", "2"), ("actor.weight_decay", "0.1"))


def reward(response_ids):
    return [len(set(ids)) / 6 for ids in response_ids]


def of_optimizer(name: str) -> tuple[tuple[str, str], ...]:
    if name != "adamw":
        pytest.importorskip("bitsandbytes", reason="8-bit moments come with `bitsandbytes`")
    return (("actor.optimizer", name), ("critic.optimizer", name))


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its matrices are large enough for moments of 8 bits: those below 4,096 weights keep 32."""
    return write_tiny_model(tmp_path_factory.mktemp("wide") / "model", hidden=64)


def saved(config: Config, step: int) -> dict[str, torch.Tensor]:
    folder = config.run_dir / "checkpoints" / f"step_{step:06d}"
    return {
        f"{role}/{name}": value
        for role in ("actor", "critic")
        for name, value in read_shards(folder, role).items()
    }


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


# ---- moments of 8 bits


@pytest.mark.parametrize("optimizer", ["adamw8bit", "paged_adamw8bit"])
@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
def test_8_bit_moments_take_a_quarter_and_resume_bit_for_bit(
    optimizer: str, wide_model: Path, tmp_path: Path
) -> None:
    chosen = of_optimizer(optimizer)

    def config(name: str, steps: int) -> Config:
        settings = (("name", name), ("steps", str(steps)), ("checkpoint.every", "2"))
        return tiny_config(tmp_path, wide_model, *chosen, *TWICE, *settings)

    Trainer(config("whole", 4), reward=reward).fit()
    Trainer(config("stopped", 2), reward=reward).fit()
    Trainer(config("stopped", 4), reward=reward, resume=True).fit()
    whole = saved(config("whole", 4), 4)
    assert_equal(whole, saved(config("stopped", 4), 4))
    place = "model.layers.0.mlp.up_proj.weight"
    assert whole[f"actor/state1/{place}"].dtype is torch.uint8
    assert whole[f"actor/state2/{place}"].dtype is torch.uint8
    assert int(whole[f"actor/step/{place}"]) == 4 * 4  # training steps × epochs × minibatches
    assert whole["actor/state1/model.norm.weight"].dtype is torch.float32


def test_8_bit_moments_lead_nearly_where_32_bit_moments_do(
    wide_model: Path, tmp_path: Path
) -> None:
    found = []
    for name in ("adamw", "adamw8bit"):
        settings = (*of_optimizer(name), ("name", name), ("steps", "1"))
        config = tiny_config(tmp_path, wide_model, *settings)
        Trainer(config, reward=reward).fit()
        found.append(saved(config, 1)["actor/weight/model.layers.0.mlp.up_proj.weight"])
    torch.testing.assert_close(*found, atol=2e-4, rtol=0)  # steps are 1e-3
    assert not torch.equal(*found)


def test_another_optimizer_does_not_continue_a_run(wide_model: Path, tmp_path: Path) -> None:
    Trainer(tiny_config(tmp_path, wide_model), reward=reward).fit()
    config = tiny_config(tmp_path, wide_model, *of_optimizer("adamw8bit"), ("steps", "3"))
    with pytest.raises(
        TelescopeError,
        match=r"trained with actor\.optimizer = adamw, and the config says adamw8bit",
    ):
        Trainer(config, reward=reward, resume=True)


def test_without_bitsandbytes_the_remedy_is_said(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(TelescopeError, match=r"'adamw8bit' needs bitsandbytes: .*\[bitsandbytes\]"):
        build_local_roles(make_config(("actor.optimizer", "adamw8bit")), reward)


# ---- host memory


@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_runs_are_bit_for_bit_the_same(
    optimizer: str,
    dtype: str,
    wide_model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(learner, "_PART", 20_000)  # a step takes several parts
    settings = (*of_optimizer(optimizer), *TWICE, ("model.dtype", dtype), ("steps", "3"))
    found = []
    for name, offload in (("plain", ()), ("offloaded", OFFLOAD)):
        config = tiny_config(tmp_path, wide_model, *settings, *offload, ("name", name))
        trainer = Trainer(config, reward=reward)
        trainer.fit()
        found.append(saved(config, 3))
        rows = trainer.history()
        found[-1] |= {
            f"{number}/{key}": torch.tensor(value)
            for number, row in enumerate(rows)
            for key, value in row.items()
            if isinstance(value, float) and not key.startswith(("timing/", "perf/"))
        }
    assert_equal(*found)


def test_an_offloaded_run_resumes_bit_for_bit_and_may_change_where_its_state_lies(
    wide_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner, "_PART", 20_000)
    settings = (("model.dtype", "bfloat16"), ("checkpoint.every", "2"))

    def config(name: str, steps: int, *offload: tuple[str, str]) -> Config:
        own = (("name", name), ("steps", str(steps)))
        return tiny_config(tmp_path, wide_model, *settings, *own, *offload)

    Trainer(config("whole", 4, *OFFLOAD), reward=reward).fit()
    Trainer(config("stopped", 2, *OFFLOAD), reward=reward).fit()
    Trainer(config("stopped", 4, *OFFLOAD), reward=reward, resume=True).fit()
    Trainer(config("changed", 2), reward=reward).fit()
    Trainer(config("changed", 4, *OFFLOAD), reward=reward, resume=True).fit()
    whole = saved(config("whole", 4), 4)
    assert_equal(whole, saved(config("stopped", 4), 4))
    assert_equal(whole, saved(config("changed", 4), 4))


def test_between_steps_only_the_weights_are_on_the_device(make_config: MakeConfig) -> None:
    roles = build_local_roles(make_config(*OFFLOAD, ("model.dtype", "bfloat16")), reward)
    batch = hand_batch([[1] * 6, [1, 1, 0, 0, 0, 0]])
    roles.reference.compute_log_prob(batch)
    roles.actor.learner.backward(
        batch, lambda rows, over: roles.actor.model(input_ids=rows["input_ids"]).logits.sum()
    )
    roles.actor.learner.step()

    def sizes(tensors) -> set[int]:
        return {tensor.untyped_storage().nbytes() for tensor in tensors}

    own = roles.actor.learner
    moments = [own.optimizer.state[master][name] for master in own.masters for name in ("exp_avg", "exp_avg_sq")]  # fmt: skip
    assert sizes([*own.masters, *moments]) == {0}
    assert sizes(roles.reference.model.parameters()) == {0}
    assert 0 not in sizes(own.weights)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="memory of a GPU")
@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit", "paged_adamw8bit"])
def test_on_a_gpu_offloaded_runs_are_the_same_in_less_memory(
    optimizer: str, tmp_path: Path
) -> None:
    folder = write_tiny_model(tmp_path / "model", hidden=512, layers=4)
    found, peaks = [], []
    for name, offload in (("plain", ()), ("offloaded", OFFLOAD)):
        settings = (("model.dtype", "bfloat16"), ("device", "cuda"), ("name", name))
        config = tiny_config(tmp_path, folder, *of_optimizer(optimizer), *settings, *offload)
        trainer = Trainer(config, reward=reward)
        trainer.fit()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.memory_allocated())
        found.append(saved(config, 2))
        del trainer
    assert_equal(*found)
    assert peaks[1] < peaks[0]
