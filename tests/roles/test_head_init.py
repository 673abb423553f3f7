"""critic.head_init: a value head of zeros or of random numbers, alike however the critic is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope import Config, Trainer, ledger
from telescope.config import Bins, ModelConfig
from telescope.errors import TelescopeError
from telescope.models.forward import value_forward
from telescope.models.load import load_critic
from telescope.run.export import export_run
from tests.fakes import hand_batch
from tests.resumed import whole_and_resumed

CPU = torch.device("cpu")


def varied(response_ids: list[list[int]]) -> list[float]:
    return [len(set(ids)) / 6 for ids in response_ids]


def values_before_the_first_update(config: Config) -> list[float]:
    trainer = Trainer(config, reward=varied)
    trainer.fit()
    return [
        value for sample in ledger.samples(config.run_dir, 1) for value in sample.columns["values"]
    ]


def test_a_head_of_zeros_says_exactly_zero_everywhere_and_a_random_one_does_not(
    make_config,
) -> None:
    assert set(values_before_the_first_update(make_config(("name", "zero")))) == {0.0}
    drawn = values_before_the_first_update(
        make_config(("name", "normal"), ("critic.head_init", "normal"))
    )
    assert all(value != 0 for value in drawn)
    assert len(set(drawn)) > 10


@pytest.mark.parametrize("bins", [None, Bins(50, -1.0, 1.0)], ids=["number", "histogram"])
@pytest.mark.parametrize("lora", [0, 3], ids=["whole", "lora"])
def test_a_random_head_has_the_model_s_own_spread_in_float32_and_no_bias(
    tiny_model: Path, bins: Bins | None, lora: int
) -> None:
    if lora:
        pytest.importorskip("peft")
    config = ModelConfig(path=str(tiny_model), dtype="bfloat16", lora_rank=lora)
    heads = [
        load_critic(config, CPU, bins, head_seed=seed).head
        for seed in range(40 if bins is None else 1)
    ]
    weights = torch.stack([head.weight.detach() for head in heads])
    assert all(
        head.weight.dtype is torch.float32
        and head.weight.requires_grad
        and head.bias.tolist() == [0] * len(head.bias)
        for head in heads
    )
    assert float(weights.std()) == pytest.approx(
        0.02, rel=0.1
    )  # initializer_range of the tiny model
    assert float(weights.mean()) == pytest.approx(0, abs=0.003)


def test_the_seed_draws_the_head_and_nothing_of_the_process_does(tiny_model: Path) -> None:
    config = ModelConfig(path=str(tiny_model))
    one = load_critic(config, CPU, head_seed=0).head.weight
    torch.rand(3)
    assert torch.equal(one, load_critic(config, CPU, head_seed=0).head.weight)
    assert not torch.equal(one, load_critic(config, CPU, head_seed=1).head.weight)


def test_a_histogram_of_a_random_head_starts_near_the_middle_but_not_at_it(
    tiny_model: Path,
) -> None:
    values = value_forward(
        load_critic(ModelConfig(path=str(tiny_model)), CPU, Bins(51, -2.0, 2.0), head_seed=0),
        hand_batch([[1, 1]]),
    ).values
    assert all(0 < abs(value) < 0.2 for value in values[0].tolist())


def test_a_run_with_a_random_head_resumes_is_exported_and_belongs_to_its_head(
    make_config, tmp_path: Path
) -> None:
    random = [("critic.head_init", "normal"), ("seed", "3")]
    whole, _ = whole_and_resumed(make_config, *random, ("steps", "2"), reward=varied, after=1)
    assert (
        export_run(whole.run_dir, tmp_path / "out") == 2
    )  # which compares the critic it loads with the run's
    was = "was trained with critic.head_init = normal with seed 3, and the config says "
    for other, says in (
        ([("seed", "3")], "zero"),
        ([("critic.head_init", "normal"), ("seed", "4")], "normal with seed 4"),
    ):
        with pytest.raises(
            TelescopeError, match=was + f"{says}: set it back, or use another --name"
        ):
            Trainer(
                make_config(*other, ("name", "part"), ("steps", "3")), reward=varied, resume=True
            )
