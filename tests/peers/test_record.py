"""telescope.record: any trainer's arrays become a run that can be explained."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import telescope
from telescope.explain.sample import Sample
from telescope.ledger.reader import samples, steps
from telescope.peers import Recorder
from tests.peers.batches import SETTINGS, batch, judged, recorded


def samples_of(folder: Path, **given: Any) -> list[Sample]:
    """What is read back of one step."""
    return samples(recorded(folder, given, **SETTINGS), 1)


def test_advantages_returns_and_whitening_of_a_foreign_batch_are_recomputed(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", batch(), **SETTINGS)
    assert judged(run) == {"return": True, "whitened": True}


def test_mean_and_spread_are_those_of_the_whole_batch_even_if_few_rows_are_kept(
    tmp_path: Path,
) -> None:
    given = batch()
    recorder = Recorder(tmp_path / "run", samples=2, settings=SETTINGS, strict=True)
    recorder.record(1, **given)
    recorder.close()
    kept = samples(tmp_path / "run", 1)
    raw = (given["returns"] - given["values"])[given["mask"] > 0]
    assert len(kept) == 2
    assert kept[0].whiten_mean == pytest.approx(raw.mean().item(), abs=1e-6)
    assert kept[0].whiten_std == pytest.approx(raw.std().item(), abs=1e-6)


def test_what_was_not_given_is_absent(tmp_path: Path) -> None:
    (sample,) = samples_of(tmp_path / "run", responses=[[5, 6, 7]], advantages=[[0.1, 0.2, 0.3]])
    assert set(sample.columns) == {"advantages"}
    assert sample.score is None
    assert sample.actor_updates == []


def test_lists_of_different_lengths_need_no_mask(tmp_path: Path) -> None:
    first, second = samples_of(
        tmp_path / "run", responses=[[5, 6, 7], [8]], values=[[0.1, 0.2, 0.3], [0.4]]
    )
    assert (first.mask, second.mask) == ([1, 1, 1], [1])
    assert second.columns["values"] == pytest.approx([0.4])


def test_a_bfloat16_tensor_is_read(tmp_path: Path) -> None:
    values = torch.tensor([[0.5, 0.25]], dtype=torch.bfloat16)
    (sample,) = samples_of(tmp_path / "run", responses=[[5, 6]], values=values)
    assert sample.columns["values"] == [0.5, 0.25]


def test_nan_in_padding_and_under_a_tool_is_not_recorded(tmp_path: Path) -> None:
    values = np.array([[0.5, np.nan, 0.25, np.nan]])
    mask = np.array([[1, 0, 1, 0]])
    (sample,) = samples_of(
        tmp_path / "run", responses=np.array([[5, 6, 7, 0]]), mask=mask, values=values
    )
    assert sample.columns["values"] == [0.5, 0.0, 0.25]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"responses": [[1, 2]], "values": [[0.1]]},
            "values[0] has 1 tokens, but the answer has 2",
        ),
        ({"responses": [[1, 2]], "value": [[0.1, 0.2]]}, "no column 'value'"),
        ({"responses": [[1], [2]], "scores": [1.0]}, "scores has 1 entries"),
        ({"responses": [[1], [2]], "texts": ["one"]}, "texts has 1 entries"),
        ({"responses": np.zeros((2, 3, 4))}, "3 dimensions"),
    ],
)
def test_a_mistake_is_said_once_and_never_raised(
    given: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path / "run")
    with caplog.at_level(logging.WARNING, "telescope"):
        recorder.record(1, **given)
        recorder.record(2, **given)
        recorder.close()
    assert [said in message for message in caplog.messages] == [True]


def test_the_folder_stays_under_its_limit_and_keeps_the_first_and_the_last_step(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    recorder = Recorder(folder, max_mb=0.03, strict=True)
    for step in range(40):
        recorder.record(step, responses=[[1, 2, 3]], values=[[0.1, 0.2, 0.3]])
        recorder.close()
    kept = steps(folder)
    size = sum(path.stat().st_size for path in (folder / "ledger").iterdir())
    assert kept[0] == 0
    assert kept[-1] >= 32
    assert size < 0.03e6
    assert recorder.every > 1


def test_metrics_are_appended_as_rows(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    recorder = Recorder(folder, every=2, strict=True)
    for step in (1, 2):
        recorder.record(step, responses=[[1]], metrics={"reward": step, "loss": float("nan")})
    recorder.close()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
    assert rows == [
        {"step": 1, "reward": 1.0, "loss": None},
        {"step": 2, "response/length_mean": 1.0, "reward": 2.0, "loss": None},
    ]
    assert steps(folder) == [2]


def test_the_module_function_records_into_a_folder(tmp_path: Path) -> None:
    from telescope.peers import recorder

    telescope.record(3, folder=tmp_path / "run", responses=[[1, 2]], prompts=["1+1?"], scores=[1.0])
    recorder._recorders[tmp_path / "run"].close()
    (sample,) = samples(tmp_path / "run", 3)
    assert (sample.prompt, sample.score) == ("1+1?", 1.0)
