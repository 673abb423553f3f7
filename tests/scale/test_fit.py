"""`telescope plan --suggest`: the fewest changes that fit, as lines of a recipe that parse."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from telescope import commands as cli
from telescope.config import load_config
from telescope.scale.plan.fit import MARGIN, Fit, Settings, as_toml, search
from telescope.scale.plan.job import Job, Rates
from telescope.scale.plan.memory import memory_of
from telescope.scale.plan.shapes import GIB, SHAPES

ROWS = (("rollout.batch_size", "64"), ("rollout.max_response_tokens", "512"))


def found(shape: str, gib: float, *given: tuple[str, str]) -> list[Fit]:
    def make_job(settings: Settings) -> Job:
        config = load_config(None, [*ROWS, *given, *settings])
        size = SHAPES[shape]
        return Job(config, 1, size, size, 512, 512, Rates(gib=gib))

    return search(make_job)


BF16 = ("model.dtype", "bfloat16")


@pytest.mark.parametrize(("shape", "gib"), [("0.5B", 24), ("1.5B", 16), ("7B", 24), ("7B", 12)])
def test_what_is_suggested_fits_and_no_smaller_set_does(shape: str, gib: float) -> None:
    best, *_ = found(shape, gib, BF16)
    assert best.memory.peak <= MARGIN * gib * GIB
    sections = {name.partition(".")[2] for name, _ in best.changes}
    for dropped in sections:
        kept = [pair for pair in best.changes if pair[0].partition(".")[2] != dropped]
        if dropped == "lora_rank":
            kept = [pair for pair in kept if pair[0] != "model.quantize"]
        job = Job(
            load_config(None, [*ROWS, BF16, *kept]),
            1,
            SHAPES[shape],
            SHAPES[shape],
            512,
            512,
            Rates(gib=gib),
        )
        assert memory_of(job).peak > MARGIN * gib * GIB, dropped


def test_the_less_memory_the_more_changes() -> None:
    counts = []
    for gib in (400, 80, 24, 16, 12):
        best, *_ = found("7B", gib, BF16)
        counts.append(len({name.partition(".")[2] for name, _ in best.changes}))
    assert counts[0] == 0
    assert counts == sorted(counts)
    assert found("70B", 16, BF16) == []


def test_where_adapters_are_suggested_training_all_weights_comes_second() -> None:
    adapters, everything = found("1.5B", 24, BF16)
    assert ("model.lora_rank", "16") in adapters.changes
    assert ("actor.offload_optimizer", "true") in everything.changes
    assert ("model.offload_reference", "true") in everything.changes
    assert not everything.job.lora
    (only,) = found("1.5B", 16, BF16, ("model.lora_rank", "8"))  # the recipe trains adapters
    assert "model.lora_rank" not in dict(only.changes)


def test_bfloat16_comes_with_every_change() -> None:
    assert all(("model.dtype", "bfloat16") in fit.changes for fit in found("0.5B", 24))


def test_a_critic_of_zeros_gets_no_settings() -> None:
    grpo = (("credit.estimator", "grpo"), ("rollout.n", "4"))
    assert found("7B", 24, BF16, *grpo)
    for fit in found("7B", 24, BF16, *grpo):
        assert not any(name.startswith("critic.") for name, _ in fit.changes)


def test_lines_to_paste_are_toml() -> None:
    settings = (("model.quantize", "nf4"), ("model.lora_rank", "16"), ("actor.lr", "1"))
    assert tomllib.loads(as_toml(settings)) == {
        "model": {"quantize": "nf4", "lora_rank": 16},
        "actor": {"lr": 1},
    }


def test_the_command_prints_a_recipe_that_fits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "--rollout.batch_size 64 --rollout.max_response_tokens 512"
    command = f"plan --shape 7B --gpu-gib 24 --suggest {rows}"
    cli.main(shlex.split(command))
    shown = capsys.readouterr().out
    assert "This is arithmetic, not a measurement. It leaves 10% of the card free." in shown
    assert re.search(r"peak of each phase, GiB: loading [\d.]+, sampling", shown)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(shown.partition("recipe:")[2].partition("peak")[0], "utf-8")
    cli.main(["plan", str(recipe), *shlex.split(command)[1:]])
    assert capsys.readouterr().out.startswith("fits 24 GiB as it is")
    cli.main(shlex.split("plan --shape 70B --gpu-gib 16 --suggest"))
    assert capsys.readouterr().out.startswith("nothing that was tried fits 16 GiB: use a smaller")


@pytest.mark.parametrize("given", ["--backend ray --ray.samplers 1", "--gpus 8", "--gpus 1,8"])
def test_several_gpus_are_no_suggestion_for_one(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(shlex.split(f"plan --shape 7B --suggest {given}"))
    assert "--suggest is about one GPU, and this plan has" in capsys.readouterr().err
