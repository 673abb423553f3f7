"""A rank reads its rows of each weight from safetensors, and the models are those of before."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from telescope.config import ModelConfig
from telescope.errors import TelescopeError
from telescope.models.load import (
    fingerprint,
    load_critic,
    load_policy,
    load_sharded,
    new_policy,
    new_value_model,
    quiet,
)
from telescope.models.parallel import ProcessGroup, full_tensor, local_part
from telescope.models.weight_files import WeightFiles, open_files
from tests.models.test_families import write_family
from tests.together import together

CPU = torch.device("cpu")
RANKS = 3


def can_be_read_in_parts(folder: Path, make: Callable[..., Any] = new_policy) -> bool:
    with torch.device("meta"):
        model = make(ModelConfig(path=str(folder)), empty=True)
    with open_files(model) as files:
        return files is not None


# ---- several ranks


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "untied": ("llama", {}),
    "tied": ("llama, tied", {}),
    "lora": ("llama", {"dtype": "bfloat16", "lora_rank": 3}),
}
MAKERS = {"policy": new_policy, "critic": new_value_model}


def load_and_report(folder: Path, cases: list[str]) -> dict[str, dict[str, Any]]:
    """What each of `RANKS` processes does."""
    reads: list[int] = []
    read = WeightFiles._read

    def counted(self: WeightFiles, *arguments: Any) -> torch.Tensor:
        part = read(self, *arguments)
        reads.append(part.nbytes)
        return part

    WeightFiles._read = counted  # type: ignore[method-assign]
    report: dict[str, dict[str, Any]] = {}
    for case in cases:
        config = ModelConfig(path=str(folder / case), **CASES[case][1])
        for role, make in MAKERS.items():
            reads.clear()
            (model,), checksum = load_sharded(make, config, ProcessGroup(CPU))
            weights = dict(model.named_parameters())
            report[f"{role}, {case}"] = {
                "checksum": checksum,
                "reads": list(reads),
                "held": {name: local_part(value).numel() for name, value in weights.items()},
                "weights": {name: full_tensor(value.detach()) for name, value in weights.items()},
            }
    return report


def test_each_of_three_ranks_reads_its_rows_and_no_others(tmp_path: Path) -> None:
    has_peft = importlib.util.find_spec("peft") is not None
    cases = [case for case in CASES if has_peft or case != "lora"]
    for case in cases:
        write_family(CASES[case][0], tmp_path / case)
    reports = together(RANKS, tmp_path / "ranks", load_and_report, tmp_path, cases)
    for case in cases:
        config = ModelConfig(path=str(tmp_path / case), **CASES[case][1])
        assert_read_by_rows(
            [report[f"policy, {case}"] for report in reports], load_policy(config, CPU)
        )
        assert_read_by_rows(
            [report[f"critic, {case}"] for report in reports], load_critic(config, CPU)
        )


def assert_read_by_rows(found: list[dict[str, Any]], model: torch.nn.Module) -> None:
    assert found[0]["checksum"] == fingerprint(model)
    whole = dict(model.named_parameters())
    for own in found:
        assert own["weights"].keys() == whole.keys()
        for name, value in own["weights"].items():
            assert torch.equal(value.to(whole[name].dtype), whole[name])
    from_files = [name for name in whole if ".lora_" not in name and not name.startswith("head.")]
    # The files are float32. 26 rows over three ranks are 9, 9 and 8.
    held = [4 * sum(own["held"][name] for name in from_files) for own in found]
    assert sum(held) == 4 * sum(whole[name].numel() for name in from_files)
    assert max(held) < 0.4 * sum(held)
    assert [sum(own["reads"][: len(from_files)]) for own in found] == held
    # The first rank also reads the values for the checksum, one by one.
    assert [len(own["reads"]) for own in found[1:]] == [len(from_files)] * (RANKS - 1)
    assert set(found[0]["reads"][len(from_files) :]) == {4}


def test_the_first_rank_makes_no_weights_that_files_have(
    tmp_path: Path, ranks: ProcessGroup
) -> None:
    made = []

    def make(config: ModelConfig, *, empty: bool = False) -> Any:
        model = new_policy(config, empty=empty)
        made.append(model)
        return model

    config = ModelConfig(path=str(write_family("llama", tmp_path / "model")))
    load_sharded(make, config, ranks)
    full = made[-1]
    assert {weight.untyped_storage().nbytes() for weight in full.parameters()} == {4}
    expected = dict(load_policy(config, CPU).named_buffers())
    for name, buffer in full.named_buffers():
        assert torch.equal(buffer, expected[name])


# ---- which files can be read in parts


def test_files_that_an_index_lists_are_read_in_parts(tmp_path: Path, ranks: ProcessGroup) -> None:
    config = ModelConfig(path=str(write_family("llama", tmp_path / "model")))
    policy = load_policy(config, CPU)
    with quiet():
        policy.save_pretrained(tmp_path / "several", max_shard_size="5KB")
    several = config.model_copy(update={"path": str(tmp_path / "several")})
    assert len(list((tmp_path / "several").glob("*.safetensors"))) > 2
    assert can_be_read_in_parts(tmp_path / "several")
    _, checksum = load_sharded(new_policy, several, ranks)
    assert checksum == fingerprint(policy)


def test_a_backbone_without_its_prefix_is_found(tmp_path: Path) -> None:
    folder = write_family("llama", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("model."): value for name, value in weights.items()}
    save_file(bare, folder / "model.safetensors", metadata={"format": "pt"})
    assert can_be_read_in_parts(folder, new_value_model)


def drop_a_tensor(folder: Path) -> None:
    change(folder, lambda weights: weights.pop("model.norm.weight"))


def add_the_tied_tensor(folder: Path) -> None:
    tied = "model.embed_tokens.weight"
    change(folder, lambda weights: weights.update({"lm_head.weight": weights[tied] + 1}))


def cut_a_tensor(folder: Path) -> None:
    norm = "model.norm.weight"
    change(folder, lambda weights: weights.update({norm: weights[norm][:-1]}))


def store_as_a_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def name_a_quantization(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    settings["quantization_config"] = {"quant_method": "fp8"}
    (folder / "config.json").write_text(json.dumps(settings))


def break_the_file(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"half a file")


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / "model.safetensors")
    edit(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    "edit",
    [
        drop_a_tensor,
        add_the_tied_tensor,
        cut_a_tensor,
        store_as_a_pickle,
        name_a_quantization,
        break_the_file,
    ],
)
def test_other_files_are_left_to_transformers(edit: Callable[[Path], None], tmp_path: Path) -> None:
    folder = write_family("llama, tied", tmp_path / "model")
    assert can_be_read_in_parts(folder)
    edit(folder)
    assert not can_be_read_in_parts(folder)


@pytest.mark.parametrize(
    ("family", "in_parts"), [("qwen2", True), ("gemma3", True), ("qwen3 moe", False)]
)
def test_experts_that_transformers_joins_are_left_to_it(
    family: str, in_parts: bool, tmp_path: Path
) -> None:
    folder = write_family(family, tmp_path / "model")
    assert can_be_read_in_parts(folder) == in_parts


@pytest.mark.filterwarnings("ignore")
def test_what_transformers_loads_is_the_same_as_before(tmp_path: Path, ranks: ProcessGroup) -> None:
    folder = write_family("llama", tmp_path / "model")
    store_as_a_pickle(folder)
    config = ModelConfig(path=str(folder))
    (model,), checksum = load_sharded(new_policy, config, ranks)
    policy = load_policy(config, CPU)
    assert checksum == fingerprint(policy)
    for name, weight in model.named_parameters():
        assert torch.equal(full_tensor(weight), policy.get_parameter(name))


def test_weights_that_are_not_finite_are_refused(tmp_path: Path, ranks: ProcessGroup) -> None:
    folder = write_family("llama", tmp_path / "model")
    change(folder, lambda weights: weights["model.norm.weight"].fill_(torch.nan))
    with pytest.raises(TelescopeError, match=r"not finite \(in model.norm.weight\)"):
        load_sharded(new_policy, ModelConfig(path=str(folder)), ranks)
