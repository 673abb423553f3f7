"""Files of other trainers become run folders.

The files under tests/peers/files were written by those projects' own writer functions (versions:
the `version` of each kind), fed with small tensors.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch

from telescope.commands import main
from telescope.errors import TelescopeError
from telescope.ledger.reader import samples, steps
from telescope.peers.opening import Opened, open_files, with_tokens
from telescope.peers.readers import KINDS, kind_of

FILES = Path(__file__).parent / "files"


def opened(name: str, tmp_path: Path) -> Opened:
    return open_files(FILES / name, tmp_path / "run")


@pytest.mark.parametrize("name", KINDS)
def test_the_kind_of_a_folder_is_found(name: str) -> None:
    assert kind_of(FILES / name).name == name


def test_prime_rl_sequences_are_cut_at_the_first_token_of_the_loss(tmp_path: Path) -> None:
    found = opened("prime-rl", tmp_path)
    rows = [
        json.loads(line) for line in (FILES / "prime-rl/token_exports/step_4/rank_0.jsonl").open()
    ]
    assert found.steps == steps(found.folder) == [4]
    first, second = samples(found.folder, 4)
    assert first.token_ids == rows[0]["token_ids"][4:]
    assert second.mask == [1, 1, 0, 1]
    assert first.columns["advantages"] == [0.5] * 5
    assert second.columns["advantages"] == [
        -0.5,
        -0.5,
        0.0,
        -0.5,
    ]  # 0 where the policy did not write
    update = first.actor_updates[0]
    assert update.log_probs == pytest.approx(rows[0]["trainer_logprobs"][4:])
    assert update.old_log_probs == pytest.approx(rows[0]["inference_logprobs"][4:])
    assert first.columns["entropy"] == pytest.approx(rows[0]["entropy"][4:])
    assert "values" not in first.columns
    assert {"values", "scores", "group", "ref_log_prob"} <= found.missing.keys()


def test_slime_samples_are_in_the_order_of_the_rollout(tmp_path: Path) -> None:
    found = opened("slime", tmp_path)
    second, first = torch.load(FILES / "slime/7.pt", weights_only=True)["samples"]
    assert found.steps == [7]
    short, long = samples(found.folder, 7)
    assert short.token_ids == [32, 33, 34]
    assert long.token_ids == [13, 14, 15, 16, 17]
    assert long.mask == [1, 1, 0, 1, 1]
    assert (short.score, long.score) == (0.0, 1.0)
    assert short.columns["values"] == pytest.approx(second["values"].tolist())
    assert long.columns["old_log_probs"][0] == pytest.approx(first["log_probs"][0].item())
    assert long.columns["values"][2] == 0.0


def test_nemo_rl_rows_end_at_their_length(tmp_path: Path) -> None:
    found = opened("nemo-rl", tmp_path)
    assert found.steps == [3]
    short, long = samples(found.folder, 3)
    assert short.token_ids == [20, 21, 22]
    assert long.token_ids == [30, 31, 32, 33, 34, 35]
    assert long.mask == [1, 1, 0, 0, 1, 1]
    assert short.columns["old_log_probs"] == pytest.approx([-0.33, -0.44, -0.55])
    assert short.columns["rollout_log_probs"] == pytest.approx([-0.3, -0.4, -0.5])
    assert (short.score, long.score) == (1.0, 0.0)


def test_the_texts_of_trl_are_words_without_a_tokenizer(tmp_path: Path) -> None:
    found = opened("trl", tmp_path)
    file = FILES / "trl/completions/completions_00001.parquet"
    rows = parquet.read_table(file).to_pylist()
    assert found.steps == [1]
    kept = samples(found.folder, 1)
    assert [sample.response for sample in kept] == [row["completion"] for row in rows]
    assert [sample.score for sample in kept] == [row["length"] for row in rows]
    assert [sample.prompt_index for sample in kept] == [0, 0, 1, 1]
    for sample, row in zip(kept, rows, strict=True):
        assert b"".join(sample.token_bytes).decode() == row["completion"]
        assert sample.columns["advantages"] == pytest.approx([row["advantage"]] * len(sample))
    assert "values" in found.missing
    assert "old_log_probs" in found.missing


def test_the_texts_of_verl_have_scores_and_groups(tmp_path: Path) -> None:
    found = opened("verl", tmp_path)
    assert found.steps == [12]
    kept = samples(found.folder, 12)
    assert [sample.score for sample in kept] == [1.0, 0.0, 1.0]
    assert [sample.prompt_index for sample in kept] == [0, 0, 1]
    assert kept[0].token_bytes == [b"It", b" is", b" 2."]
    assert kept[0].columns == {}
    assert {"advantages", "values", "old_log_probs"} <= found.missing.keys()


def test_texts_are_cut_into_the_tokenizers_tokens(tmp_path: Path) -> None:
    class Letters:
        eos_token_id = None
        all_special_ids = ()

        def __call__(self, text: str, **_: bool) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) for letter in text]}

    given = with_tokens({"texts": ["2+3", ""], "advantages": [0.5, 1.0]}, Letters())
    assert given["responses"] == [[50, 43, 51], []]
    assert given["advantages"] == [[0.5, 0.5, 0.5], []]


def test_training_and_validation_of_verl_are_not_mixed(tmp_path: Path) -> None:
    line = (FILES / "verl" / "12.jsonl").read_text()
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "12.jsonl").write_text(line)
    with pytest.raises(TelescopeError, match="open one of the folders"):
        open_files(tmp_path, tmp_path / "run")
    assert open_files(tmp_path / "val", tmp_path / "run").steps == [12]


@pytest.mark.parametrize("name", ["trl", "verl"])
def test_a_run_of_texts_can_be_explained(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["open", str(FILES / name), "--to", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "no values: without it there is no V on the posts" in out
    assert "token ids are not written" in out
    main(["explain", str(tmp_path / "run"), "--lang", "en"])
    said = capsys.readouterr().out
    assert "Traceback" not in said
    assert "V[" not in said


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("import builtins; builtins.hacked = True",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    (tmp_path / "3.pt").write_bytes(
        pickle.dumps({"format_version": 2, "samples": [Evil()]}, protocol=2)
    )
    with pytest.raises(TelescopeError, match="not opened"):
        open_files(tmp_path, tmp_path / "run", kind="slime")
    assert not hasattr(__builtins__, "hacked")


def test_a_folder_without_known_files_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="token_exports"):
        open_files(tmp_path, tmp_path / "run")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train_data_step1.jsonl"
    whole = (FILES / "nemo-rl" / "train_data_step3.jsonl").read_text().splitlines()[0]
    file.write_text(f"{whole}\nnot json\n")
    with pytest.raises(TelescopeError, match="line 2 is not JSON"):
        open_files(file, tmp_path / "run")


def test_a_field_of_another_version_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train_data_step1.jsonl"
    file.write_text('{"token_ids": [[1]], "token_loss_mask": [[1]]}\n')
    with pytest.raises(TelescopeError, match="no 'input_lengths'"):
        open_files(file, tmp_path / "run")


def test_the_command_lists_what_cannot_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["open", str(FILES / "nemo-rl"), "--to", str(tmp_path / "run")])
    out = capsys.readouterr().out
    assert "1 steps (3 to 3) of nemo-rl" not in out
    assert "1 step (3) of nemo-rl" in out
    assert "no values: without it there is no V on the posts" in out
