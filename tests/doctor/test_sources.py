"""Metrics of other trainers: each kind of file gives the same curves under our names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from telescope.doctor import examine
from telescope.doctor.sources.names import canonical
from telescope.doctor.sources.opening import open_source
from telescope.errors import TelescopeError
from tests.doctor.made import write_step

FILES = Path(__file__).parent / "files"
STEPS = 12


def grpo_rows() -> list[dict[str, float]]:
    """What TRL logs of a GRPO run whose reward is always 0.25."""
    return [
        {
            "step": step,
            "reward": 0.25,
            "entropy": 0.4,
            "kl": 0.001,
            "completions/mean_length": 100.0,
            "completions/clipped_ratio": 0.0,
            "frac_reward_zero_std": 1.0,
        }
        for step in range(1, STEPS + 1)
    ]


def found(path: Path) -> list[str]:
    return [finding.id for finding in examine(path).findings()]


def test_trl_trainer_state_in_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-12"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": grpo_rows()}))
    assert found(tmp_path) == ["constant_reward", "flat_groups"]
    assert found(folder / "trainer_state.json") == ["constant_reward", "flat_groups"]


def test_tensorboard_events(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    writer = tensorboard.SummaryWriter(str(tmp_path / "logs"))
    for row in grpo_rows():
        writer.add_scalar("train/reward", row["reward"], row["step"])
    writer.close()
    assert found(tmp_path) == ["constant_reward"]


def test_an_offline_wandb_file_is_read_without_wandb() -> None:
    curves = open_source(FILES / "offline.wandb").refresh()
    score = curves.get("reward/score_mean")
    length = curves.get("response/length_mean")
    assert score is not None
    assert length is not None
    assert score.steps.tolist() == [float(step) for step in range(1, 13)]
    assert set(score.values.tolist()) == {0.25}
    assert length.values.tolist()[:3] == [100.0, 101.0, 102.0]
    assert found(FILES / "offline.wandb") == ["constant_reward"]


def test_a_wandb_file_that_was_cut_gives_the_rows_before(tmp_path: Path) -> None:
    whole = (FILES / "offline.wandb").read_bytes()
    (tmp_path / "run.wandb").write_bytes(whole[: len(whole) // 2])
    curves = open_source(tmp_path / "run.wandb").refresh()
    assert curves.last_step < 12


def test_verl_console_lines(tmp_path: Path) -> None:
    lines = [
        f"(TaskRunner pid=7) step:{step} - actor/entropy:0.41 - critic/score/mean:0.25 - "
        f"response_length/mean:np.float64(120.5) - critic/vf_explained_var:-0.2 - critic/vf_loss:0.1"
        for step in range(1, STEPS + 1)
    ]
    (tmp_path / "run.log").write_text("\n".join(["starting", *lines, "done"]))
    curves = open_source(tmp_path).refresh()
    length = curves.get("response/length_mean")
    assert length is not None
    assert length.values[0] == 120.5
    assert found(tmp_path) == ["constant_reward"]


def test_verl_jsonl(tmp_path: Path) -> None:
    rows = [{"step": s, "data": {"critic/score/mean": 0.25}} for s in range(1, STEPS + 1)]
    (tmp_path / "verl.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    assert found(tmp_path / "verl.jsonl") == ["constant_reward"]


FAR = [-142000.0, -9000.0, -1900.0, -640.0, -210.0, -77.0, -31.0, -13.0]
"""Explained variance of a value head that starts at random weights."""


def test_verl_critic_that_starts_at_random_weights(tmp_path: Path) -> None:
    lines = [
        f"step:{i} - critic/score/mean:0.{i} - critic/vf_explained_var:{value} - critic/vf_loss:0.7"
        for i, value in enumerate(FAR, 1)
    ]
    (tmp_path / "run.log").write_text("\n".join(lines))
    (finding,) = examine(tmp_path).findings()
    assert (finding.id, finding.severity) == ("value_scale", "serious")


def test_trl_critic_that_starts_at_random_weights(tmp_path: Path) -> None:
    rows = [
        {
            "step": i,
            "ppo/mean_scores": i / 10,
            "ppo/val/var_explained": value,
            "ppo/loss/value": 0.7,
        }
        for i, value in enumerate(FAR, 1)
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    (finding,) = examine(tmp_path).findings()
    assert (finding.id, finding.severity) == ("value_scale", "serious")


def test_trl_ppo_kl_is_a_sum_per_response_and_becomes_a_mean_per_token() -> None:
    row = canonical({"objective/kl": 10.0, "completions/mean_length": 100.0})
    assert row["reward/kl"] == 0.1


def test_parts_of_the_reward_keep_their_names_with_any_prefix() -> None:
    assert canonical({"rewards/format/mean": 0.5}) == {"reward/format": 0.5}
    assert canonical({"train/rewards/format/mean": 0.5}) == {"reward/format": 0.5}
    assert canonical({"rewards/format": 0.5}) == {"reward/format": 0.5}
    assert canonical({"rewards/chosen": 0.5}) == {"rewards/chosen": 0.5}  # DPO's


def test_the_kl_of_the_loss_stands_in_where_no_other_is_logged() -> None:
    assert canonical({"actor/kl_loss": 0.2})["reward/kl"] == 0.2
    assert canonical({"actor/kl_loss": 0.2, "reward/kl": 0.1})["reward/kl"] == 0.1


def test_evaluation_is_never_taken_for_training() -> None:
    row = canonical({"eval_reward": 0.5, "eval/entropy": 0.1, "eval/rewards/format/mean": 1.0})
    assert row["eval/sampled_score"] == 0.5
    assert not [name for name in row if not name.startswith("eval/")]


def test_old_names_of_trl_ppo() -> None:
    row = canonical(
        {"ppo/mean_scores": 0.5, "objective/kl": 12.0, "tokens/responses_len_mean": 60.0}
    )
    assert row["reward/score_mean"] == 0.5
    assert row["reward/kl"] == 0.2


def test_verl_probabilities_that_differ_are_a_mismatch(tmp_path: Path) -> None:
    data = {"training/rollout_probs_diff_mean": 0.15}
    rows = [{"step": s, "data": data} for s in range(1, STEPS + 1)]
    (tmp_path / "verl.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (finding,) = examine(tmp_path).findings()
    assert finding.id == "sampler_mismatch"
    assert "probabilities that differ by 0.150" in finding.said("what", "en")


def test_a_coefficient_that_is_not_known_is_not_said_to_be_0(tmp_path: Path) -> None:
    rows = [{"step": s, "kl": 2.0 * s} for s in range(1, STEPS + 1)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": rows}))
    runaway = next(each for each in examine(tmp_path).findings() if each.id == "kl_runaway")
    assert "β = ?" in runaway.said("what", "en")


def test_held_out_accuracy_of_verl() -> None:
    row = canonical({"val-core/openai/gsm8k/acc/mean@1": 0.4})
    assert row == {"eval/sampled_accuracy": 0.4}


def test_a_run_of_record_is_a_run(tmp_path: Path) -> None:
    write_step(tmp_path / "watched", 1, [{"responses": [3, 4] * 40}] * 4)
    assert found(tmp_path / "watched") == ["looping"]


def test_a_growing_run_is_read_as_far_as_it_has_grown(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    rows = [json.dumps({"step": s, "reward/score_mean": 0.25}) + "\n" for s in range(1, 13)]
    path.write_text("".join(rows[:4]))
    examination = examine(tmp_path)
    assert examination.findings() == []
    path.write_text("".join(rows[:11]) + rows[11][:5])
    assert [each.id for each in examination.findings()] == ["constant_reward"]
    assert examination.steps == 11


@pytest.mark.parametrize("name", ["empty", "nothing"])
def test_what_cannot_be_read_is_one_plain_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(TelescopeError, match=r"has no metrics|no run"):
        examine(tmp_path / name)


def test_a_damaged_state_is_one_plain_line(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text("{")
    with pytest.raises(TelescopeError, match=r"can(not)? be read"):
        examine(tmp_path)
