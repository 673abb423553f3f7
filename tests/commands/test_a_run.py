"""train, eval and export, one after the other on one run."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from telescope import commands as cli
from telescope.config import Config, load_config, to_toml
from telescope.models.load import quiet
from telescope.models.shards import load_weights
from telescope.models.value import ValueModel
from telescope.run.metrics import read_metrics
from tests.commands.calls import Capture, printed, refusal
from tests.fakes import read_shards, tiny_config
from tests.refusals import edit_config


@pytest.fixture(scope="module")
def finished(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """Two steps on the built-in prompts, by `telescope train recipe.toml --steps 2`."""
    folder = tmp_path_factory.mktemp("cli")
    rewards = folder / "rewards.py"
    rewards.write_text(
        "def digits(prompts, completions):\n"
        "    return [sum(c.isdigit() for c in text) / 6 for text in completions]\n"
    )
    recipe = folder / "recipe.toml"
    settings = [
        ("steps", "9"),
        ("rollout.batch_size", "64"),
        ("reward.functions", f"{rewards}:digits"),
        ("eval.correct_score", "0.5"),
    ]
    recipe.write_text(to_toml(tiny_config(folder, tiny_model, *settings)), "utf-8")
    cli.main(["train", str(recipe), "--steps", "2"])
    return load_config(recipe, [("steps", "2")])


def newest(config: Config) -> Path:
    return config.run_dir / "checkpoints" / "step_000002"


def metrics_of(config: Config) -> list[dict[str, float]]:
    return read_metrics(config.run_dir / "metrics.jsonl")


def times(folder: Path) -> dict[Path, int]:
    """When each file was last changed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_train_writes_its_config_metrics_and_checkpoints(finished: Config):
    assert load_config(finished.run_dir / "config.toml") == finished
    assert [row["step"] for row in metrics_of(finished)] == [0, 1, 2, 2]
    saved = sorted(path.name for path in (finished.run_dir / "checkpoints").iterdir())
    assert saved == ["step_000001", "step_000002"]


def test_training_changes_the_weights(finished: Config):
    second = read_shards(newest(finished), "actor")
    first = read_shards(newest(finished).with_name("step_000001"), "actor")
    assert any(not torch.equal(first[name], second[name]) for name in first)


def test_train_again_without_resume_is_refused(finished: Config, capsys: Capture):
    told = refusal(capsys, "train", str(finished.run_dir / "config.toml"))
    assert f"{finished.run_dir} already holds a run (step_000002)" in told
    assert "pass --resume to continue, or another --name" in told


def test_train_again_with_resume_ends_at_once_with_the_same_summary(
    finished: Config, capsys: Capture
):
    """No step, no evaluation, no checkpoint is repeated."""
    before = times(newest(finished))
    metrics = (finished.run_dir / "metrics.jsonl").read_bytes()
    first = printed(capsys, "train", str(finished.run_dir / "config.toml"), "--resume")
    again = printed(capsys, "train", str(finished.run_dir / "config.toml"), "--resume")
    assert first == again
    assert "step 1/2" not in first
    assert f"trained 2 steps: {finished.run_dir}" in first
    assert "held-out accuracy    before   after" in first
    assert times(newest(finished)) == before
    assert (finished.run_dir / "metrics.jsonl").read_bytes() == metrics


def test_the_summary_is_that_of_the_run_itself(tiny_model: Path, tmp_path: Path, capsys: Capture):
    config = tiny_config(tmp_path, tiny_model, ("steps", "1"), ("rollout.batch_size", "64"))
    Path("recipe.toml").write_text(to_toml(config), "utf-8")
    trained = printed(capsys, "train", "recipe.toml")
    resumed = printed(capsys, "train", "recipe.toml", "--resume")
    start = trained.index("trained 1 steps")
    assert trained[start:] == resumed[resumed.index("trained 1 steps") :]
    rows = metrics_of(config)
    for kind in ("sampled", "greedy"):
        before = rows[0][f"eval/{kind}_accuracy"]
        after = rows[-1][f"eval/{kind}_accuracy"]
        assert f"  {kind:17}  {before:7.3f} {after:7.3f}" in trained


def test_eval_prints_the_numbers_of_the_last_evaluation(finished: Config, capsys: Capture):
    last = metrics_of(finished)[-1]
    lines = printed(capsys, "eval", str(finished.run_dir)).splitlines()
    shown = dict(line.split() for line in lines)
    assert shown.pop("step") == "2"
    assert shown == {name: f"{value:.4f}" for name, value in last.items() if name != "step"}
    assert shown.keys() == {
        "eval/sampled_accuracy",
        "eval/sampled_score",
        "eval/greedy_accuracy",
        "eval/greedy_score",
    }


def test_eval_changes_nothing(finished: Config, capsys: Capture):
    before = times(finished.run_dir)
    cli.main(["eval", str(finished.run_dir)])
    assert times(finished.run_dir) == before


@pytest.mark.parametrize("command", ["eval", "explain"])
def test_a_strangers_run_does_not_run_its_code_without_trust(
    command: str, finished: Config, tmp_path: Path, capsys: Capture
):
    run = Path(shutil.copytree(finished.run_dir, tmp_path / "theirs"))
    code = tmp_path / "theirs.py"
    code.write_text(
        "from pathlib import Path\n"
        "Path(__file__).with_suffix('.ran').touch()\n"
        "def digits(completions): return [1.0] * len(completions)\n"
    )
    edit_config(run / "config.toml", finished.reward.functions[0], f"{code}:digits")
    asked = {
        "eval": ["eval", str(run)],
        "explain": ["explain", "--prompt", "1+1=2", "--score", "1", "--model", str(run)],
    }[command]
    told = refusal(capsys, *asked)
    assert f"reward.functions = '{code}:digits'" in told
    assert not code.with_suffix(".ran").exists()
    printed(capsys, *asked, "--trust")
    assert code.with_suffix(".ran").exists()


@pytest.fixture(scope="module")
def exported(finished: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "new" / "hf"
    cli.main(["export", str(finished.run_dir), str(folder)])
    return folder


def test_the_exported_actor_loads_with_the_weights_of_the_checkpoint(
    finished: Config, exported: Path
):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with quiet():
        model = AutoModelForCausalLM.from_pretrained(exported)
        tokenizer = AutoTokenizer.from_pretrained(exported)
    saved = read_shards(newest(finished), "actor")
    for name, value in model.named_parameters():
        assert torch.equal(value, saved[f"weight/{name}"]), name
    assert tokenizer.decode(tokenizer("请问1+1=2？").input_ids) == "请问1+1=2？"


def test_the_exported_critic_loads_and_its_logits_are_the_values(finished: Config, exported: Path):
    from transformers import AutoModel, AutoModelForTokenClassification

    with quiet():
        model, report = AutoModelForTokenClassification.from_pretrained(
            exported / "critic", output_loading_info=True
        )
        value_model = ValueModel(AutoModel.from_pretrained(finished.model.path)).eval()
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    load_weights(newest(finished) / "shards" / "critic", value_model)
    ids = torch.tensor([[3, 17, 14, 17, 15, 18, 13], [4, 5, 6, 7, 8, 9, 10]])
    with torch.no_grad():
        logits = model.eval()(input_ids=ids).logits  # [2, 7, 1]
        values = value_model(input_ids=ids)  # [2, 7]
    assert logits.shape == (2, 7, 1)
    assert torch.equal(model.score.weight, value_model.head.weight)
    # Not bit for bit equal: the weights lie elsewhere in memory.
    torch.testing.assert_close(logits.squeeze(-1), values, rtol=1e-5, atol=1e-6)
    assert values.abs().max() > 0  # the head starts at zero: it was trained


def test_export_says_what_loads_it(finished: Config, capsys: Capture):
    shown = printed(capsys, "export", str(finished.run_dir), "out")
    assert shown.startswith("exported step 2: out loads with AutoModelForCausalLM")


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_export_refuses_what_exists(finished: Config, capsys: Capture, kind: str):
    file = Path("mine")
    if kind == "folder":
        file.mkdir()
        file = file / "thesis.txt"
    file.write_text("three years of work")
    told = refusal(capsys, "export", str(finished.run_dir), "mine")
    assert "mine exists already: give a new folder" in told
    assert file.read_text() == "three years of work"
    assert [path.name for path in Path().iterdir()] == ["mine"]


@pytest.mark.parametrize("target", ["empty", "."])
def test_export_takes_an_empty_folder(finished: Config, capsys: Capture, target: str):
    if target != ".":
        Path(target).mkdir()
    printed(capsys, "export", str(finished.run_dir), target)
    assert (Path(target) / "critic" / "model.safetensors").is_file()


def test_export_below_a_file_is_refused(finished: Config, capsys: Capture):
    Path("file").write_text("")
    assert "cannot write file/out" in refusal(capsys, "export", str(finished.run_dir), "file/out")


def test_eval_works_after_a_resume_that_was_refused(finished: Config, capsys: Capture):
    shutil.copytree(finished.run_dir, "run")
    before = printed(capsys, "eval", "run")
    refusal(capsys, "train", "run/config.toml", "--resume", "--dir", ".", "--device", "gpu")
    assert printed(capsys, "eval", "run") == before
