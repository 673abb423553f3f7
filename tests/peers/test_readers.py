"""Files of other trainers become run folders.

The files under tests/peers/files were written by those projects' own writer functions (versions:
the `version` of each kind), fed with small tensors.
"""

from __future__ import annotations

import builtins
import json
import math
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

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
    with warnings.catch_warnings(action="error"), pytest.raises(TelescopeError, match="not opened"):
        open_files(tmp_path, tmp_path / "run", kind="slime")
    assert not hasattr(builtins, "hacked")


@pytest.mark.parametrize("content", [b"", b"x", b"junk", b"PK\x03\x04", bytes(100)])
def test_a_file_that_torch_cannot_read_is_refused_in_one_line(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "3.pt").write_bytes(content)
    with pytest.raises(TelescopeError, match=r"is not opened: .") as refused:
        open_files(tmp_path, tmp_path / "run", kind="slime")
    assert "\n" not in str(refused.value)


def test_an_archive_that_is_larger_inside_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "3.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1_000_000))
    with pytest.raises(TelescopeError, match="1000000 bytes are packed into a file of"):
        open_files(tmp_path, tmp_path / "run", kind="slime")


def test_a_tensor_that_names_more_numbers_than_the_file_holds_is_refused(tmp_path: Path) -> None:
    data = torch.load(FILES / "slime/7.pt", weights_only=True)
    data["samples"][0]["tokens"] = torch.zeros(1, dtype=torch.long).expand(10**12)
    torch.save(data, tmp_path / "7.pt")
    with pytest.raises(TelescopeError, match="1000000000000 numbers, and the file holds fewer"):
        open_files(tmp_path, tmp_path / "run")


def test_a_folder_without_known_files_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(TelescopeError, match="token_exports"):
        open_files(tmp_path, tmp_path / "run")


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "train_data_step1.jsonl"
    whole = (FILES / "nemo-rl" / "train_data_step3.jsonl").read_text().splitlines()[0]
    file.write_text(f"{whole}\nnot json\n")
    with pytest.raises(TelescopeError, match="line 2 is not JSON") as said:
        open_files(file, tmp_path / "run")
    assert str(said.value).count(str(file)) == 1


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


# ---- what the writers can write besides ----


def nemo_rl(folder: Path, *changes: dict[str, Any], cut: int = 0) -> Path:
    """A file of NeMo-RL, its rows changed, and its last bytes not written yet."""
    lines = (FILES / "nemo-rl" / "train_data_step3.jsonl").read_text().splitlines()
    rows = [json.loads(line) | change for line, change in zip(lines, changes, strict=False)]
    rows += [change for change in changes[len(lines) :]]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train_data_step3.jsonl").write_text(text[: len(text) - cut])
    return folder


def prime_rl(folder: Path, rank: int, **changes: Any) -> None:
    line = (FILES / "prime-rl/token_exports/step_4/rank_0.jsonl").read_text().splitlines()[0]
    place = folder / "token_exports/step_4"
    place.mkdir(parents=True, exist_ok=True)
    (place / f"rank_{rank}.jsonl").write_text(json.dumps(json.loads(line) | changes) + "\n")


def slime(path: Path, **changes: Any) -> Path:
    data = torch.load(FILES / "slime/7.pt", weights_only=True)
    for name, column in changes.items():
        if name in ("raw_reward", "format_version", "rollout_id"):
            data[name] = column
        else:
            for sample, value in zip(data["samples"], column, strict=True):
                sample[name] = value
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(data, path)
    return path


def test_nemo_rl_scores_are_those_of_the_rows_that_were_trained_on(tmp_path: Path) -> None:
    left_out = {"rewards": [9.0], "token_ids": [], "token_loss_mask": [], "input_lengths": []}
    folder = nemo_rl(
        tmp_path / "logs",
        {"rewards": [5.0], "filtered_rewards": [1.0]},
        {"rewards": [6.0], "filtered_rewards": [0.0]},
        left_out,
    )
    kept = samples(open_files(folder, tmp_path / "run").folder, 3)
    assert [sample.score for sample in kept] == [1.0, 0.0]


def test_nemo_rl_columns_that_were_not_written_are_absent(tmp_path: Path) -> None:
    file = tmp_path / "train_data_step1.jsonl"
    file.write_text('{"token_ids": [7, 8, 9], "token_loss_mask": [0, 1, 1], "input_lengths": 3}\n')
    found = open_files(file, tmp_path / "run")
    assert {"advantages", "old_log_probs"} <= found.missing.keys()
    assert samples(found.folder, 1)[0].columns == {}


def test_nemo_rl_log_probs_that_were_skipped_are_absent_not_zero(tmp_path: Path) -> None:
    zeros = {"prev_logprobs": [[0.0] * 8]}
    found = open_files(nemo_rl(tmp_path / "logs", zeros, zeros), tmp_path / "run")
    assert "old_log_probs" in found.missing
    assert "old_log_probs" not in samples(found.folder, 3)[0].columns


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    found = open_files(nemo_rl(tmp_path / "logs", {}, {}, cut=30), tmp_path / "run")
    assert len(samples(found.folder, 3)) == 1


def test_a_character_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "12.jsonl"
    line = json.dumps({"input": "问", "output": "等于", "score": 1.0}, ensure_ascii=False) + "\n"
    file.write_bytes(line.encode() + line.encode()[:13])
    assert line.encode()[:13].decode(errors="ignore") != line.encode()[:13].decode(errors="replace")
    assert len(samples(open_files(file, tmp_path / "run").folder, 12)) == 1


def test_ranks_of_prime_rl_are_one_step(tmp_path: Path) -> None:
    for rank in range(3):
        prime_rl(tmp_path / "out", rank)
    assert len(samples(open_files(tmp_path / "out", tmp_path / "run").folder, 4)) == 3


def test_a_null_of_prime_rl_is_nan_in_its_slot_not_a_missing_column(tmp_path: Path) -> None:
    numbers = [-0.5] * 9
    prime_rl(tmp_path / "out", 0, inference_logprobs=[*numbers[:6], None, *numbers[7:]])
    prime_rl(tmp_path / "out", 1, entropy=[None] * 9)
    found = open_files(tmp_path / "out", tmp_path / "run")
    first, _ = samples(found.folder, 4)
    assert "entropy" in found.missing
    column = first.columns["rollout_log_probs"]
    assert math.isnan(column[2])
    assert column[:2] == [-0.5, -0.5]


def test_tokens_of_prime_rl_that_no_sampler_wrote_have_no_ratio(tmp_path: Path) -> None:
    prime_rl(tmp_path / "out", 0, importance_ratio=[None] * 9, inference_logprobs=[0.0] * 9)
    found = open_files(tmp_path / "out", tmp_path / "run")
    assert "old_log_probs" in found.missing
    assert samples(found.folder, 4)[0].actor_updates == []


def test_scores_of_slime_are_those_before_normalisation(tmp_path: Path) -> None:
    file = slime(tmp_path / "7.pt", rewards=[-1.0, 1.0], raw_reward=[2.0, 4.0])
    kept = samples(open_files(file, tmp_path / "run").folder, 7)
    assert [sample.score for sample in kept] == [2.0, 4.0]
    assert [sample.truncated for sample in kept] == [True, False]


def test_a_kl_that_slime_did_not_compute_is_absent(tmp_path: Path) -> None:
    zeros = [torch.zeros(3), torch.zeros(5)]
    found = open_files(slime(tmp_path / "7.pt", kl=zeros), tmp_path / "run")
    assert "kl" not in samples(found.folder, 7)[0].columns


def test_whitened_advantages_of_slime_are_recorded_as_such(tmp_path: Path) -> None:
    data = torch.load(FILES / "slime/7.pt", weights_only=True)
    raw = [sample["returns"] - sample["values"] for sample in data["samples"]]
    on = torch.cat([sample["loss_masks"] for sample in data["samples"]]) > 0
    flat = torch.cat(raw)[on]
    whitened = [(row - flat.mean()) / flat.std() for row in raw]
    for name, advantages in (("whitened", whitened), ("advantages", raw)):
        file = slime(tmp_path / name / "7.pt", advantages=advantages)
        columns = samples(open_files(file, tmp_path / name / "run").folder, 7)[0].columns
        assert {"whitened", "advantages"} & columns.keys() == {name}


def test_of_slimes_details_the_training_data_are_read(tmp_path: Path) -> None:
    slime(tmp_path / "details/train_data/step_7_0.pt", rollout_id=7)
    rollout = {
        "tokens": [1, 2, 3],
        "response_length": 2,
        "loss_mask": None,
        "reward": 0.5,
        "status": "truncated",
        "group_index": 4,
        "rollout_log_probs": [-0.1, -0.2],
        "metadata": {},
    }
    torch.save({"rollout_id": 7, "samples": [rollout]}, tmp_path / "7.pt")
    for name in ("7.pt", "eval_7.pt"):
        place = tmp_path / "details/rollout_data"
        place.mkdir(exist_ok=True)
        (place / name).write_bytes((tmp_path / "7.pt").read_bytes())
    assert len(samples(open_files(tmp_path / "details", tmp_path / "a").folder, 7)) == 2
    (only,) = samples(open_files(tmp_path / "details/rollout_data", tmp_path / "b").folder, 7)
    assert (only.token_ids, only.mask, only.score, only.truncated) == ([2, 3], [1, 1], 0.5, True)
    assert only.columns["rollout_log_probs"] == pytest.approx([-0.1, -0.2])


def test_the_rollout_of_a_slime_file_is_in_it(tmp_path: Path) -> None:
    assert open_files(slime(tmp_path / "train_9_3.pt"), tmp_path / "run").steps == [7]


@pytest.mark.parametrize("kind", ["nemo-rl", "slime"])
def test_two_runs_are_not_mixed(kind: str, tmp_path: Path) -> None:
    for name in ("exp_001", "exp_002"):
        if kind == "slime":
            slime(tmp_path / "logs" / name / "7.pt")
        else:
            nemo_rl(tmp_path / "logs" / name, {}, {})
    with pytest.raises(TelescopeError, match="open one of the folders"):
        open_files(tmp_path / "logs", tmp_path / "run")


@pytest.mark.parametrize(
    "row",
    [
        {"token_ids": 5, "token_loss_mask": [1], "input_lengths": 1},
        {"token_ids": [1, 2], "token_loss_mask": ["a", {}], "input_lengths": 2},
        {"token_ids": [[[1]]], "token_loss_mask": [1], "input_lengths": "many"},
        {"token_ids": [1, 2], "token_loss_mask": [1, 1], "input_lengths": 2, "advantages": ["x"]},
    ],
)
def test_a_file_of_another_shape_is_refused_in_one_line(
    row: dict[str, Any], tmp_path: Path
) -> None:
    file = tmp_path / "train_data_step1.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(TelescopeError, match="cannot be read as nemo-rl"):
        open_files(file, tmp_path / "run")


def test_an_empty_step_is_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        nemo_rl(tmp_path / "logs", *[{}, {}][: step - 1]).joinpath("train_data_step3.jsonl").rename(
            tmp_path / "logs" / f"train_data_step{step}.jsonl"
        )
    run = tmp_path / "run"
    main(["open", str(tmp_path / "logs"), "--to", str(run)])
    for command in (["report", str(run)], ["doctor", str(run)], ["explain", str(run)]):
        main(command)
    assert "Traceback" not in capsys.readouterr().out


def test_opening_again_replaces_what_was_opened(tmp_path: Path) -> None:
    for _ in range(2):
        open_files(FILES / "nemo-rl", tmp_path / "run")
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 1
    open_files(FILES / "slime", tmp_path / "run")
    assert steps(tmp_path / "run") == [7]


def test_another_run_is_not_opened_into(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(TelescopeError, match="--to"):
        open_files(FILES / "slime", tmp_path / "run")
