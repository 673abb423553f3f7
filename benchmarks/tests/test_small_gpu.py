"""The benchmark of small GPUs, with a tiny model on the CPU."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from tests import ROOT


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("small", ROOT / "benchmarks" / "small_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "settings", [(), ("model.lora_rank=2", "model.quantize=nf4", "actor.offload_optimizer=true")]
)
def test_it_prints_a_row_with_every_phase(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if settings:
        pytest.importorskip("bitsandbytes")
    out = tmp_path / "figures.json"
    sizes = "--device cpu --shape tiny --rows 4 --prompt-tokens 5 --response-tokens 6 --steps 2"
    given = [word for setting in settings for word in ("--set", setting)]
    load().main([*sizes.split(), *given, "--json", str(out)])
    header, _, row, *_ = capsys.readouterr().out.splitlines()
    assert header.count("|") == row.count("|")
    assert "| tiny, random weights | 24 | 4 × (5 + 6) |" in row
    figures = json.loads(out.read_text("utf-8"))
    assert "error" not in figures
    assert len(figures["steps"]) == 2
    for phase in ("rollout", "values", "reference", "update_critic", "update_actor"):
        assert figures["steps"][1][f"timing/{phase}"] > 0
