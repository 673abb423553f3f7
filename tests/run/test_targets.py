"""telescope eval and export: runs, steps, exported folders, the hub."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow.parquet as parquet
import pytest

from telescope import Trainer
from telescope.commands import main
from telescope.config import ModelConfig, load_config, to_toml
from telescope.roles.factory import resolve_model
from telescope.run.targets import evaluate_target
from tests.commands.calls import refusal
from tests.docs.examples import block, commands
from tests.refusals import write_jsonl
from tests.tiny import tiny_config

PAGES = ("evaluate.md", "zh/evaluate.md")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A run with checkpoints of steps 1 and 2, and its last one exported beside it."""
    small = (("eval.prompts", "4"), ("eval.samples", "4"), ("actor.lr", "0.1"))
    config = tiny_config(tmp_path_factory.mktemp("runs"), tiny_model, *small)
    Trainer(config).fit()
    main(["export", str(config.run_dir), str(config.run_dir.parent / "exported")])
    return config.run_dir


def test_a_model_without_a_recipe_says_what_it_was_measured_on(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = str(run.parent / "exported")
    few = ["--eval.prompts", "4", "--eval.samples", "4", "--rollout.max_response_tokens", "8"]
    capsys.readouterr()
    main(["eval", exported, *few])
    assert (
        "exported: measured on the built-in prompts, such as 请问1+1=2？" in capsys.readouterr().err
    )
    main(["eval", str(run), exported, *few])
    assert "built-in prompts" not in capsys.readouterr().err  # the run says which


def test_a_run_a_step_and_an_exported_folder_are_measured_alike(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exported = str(run.parent / "exported")
    step = str(run / "checkpoints" / "step_000001")
    capsys.readouterr()
    main(["eval", str(run), step, exported, "--json", "--eval.k", "2"])
    of_run, of_step, of_folder = json.loads(capsys.readouterr().out)
    assert [each["target"] for each in (of_run, of_step, of_folder)] == [str(run), step, exported]
    assert [each["step"] for each in (of_run, of_step, of_folder)] == [2, 1, None]
    assert of_folder["metrics"] == of_run["metrics"]  # with the data and reward of the run
    assert "eval/pass@2" in of_run["metrics"]
    main(["eval", str(run), "--step", "1", "--json", "--eval.k", "2"])
    (by_option,) = json.loads(capsys.readouterr().out)
    assert by_option["metrics"] == of_step["metrics"]


def test_a_model_is_measured_whole_and_as_it_is_whatever_the_recipe_trains(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With adapters, 4-bit weights, another tokenizer and a warm start in the recipe."""
    recipe = tmp_path / "small.toml"
    recipe.write_text(
        """
        warm_start = {files = ["answers.jsonl"], epochs = 2}
        [model]
        path = "elsewhere"
        tokenizer_path = "elsewhere"
        lora_rank = 4
        quantize = "nf4"
        """
    )
    seen: list[Any] = []
    monkeypatch.setattr("telescope.run.targets.build_actor", lambda c: seen.append(c))
    monkeypatch.setattr("telescope.run.targets.evaluate_actor", lambda *_: None)
    exported = str(run.parent / "exported")
    evaluate_target(exported, recipe=str(recipe))
    model = resolve_model(seen[0])
    assert model == ModelConfig(path=exported)


def test_several_targets_are_columns_of_one_table(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.parent)
    capsys.readouterr()
    main(["eval", "run", "exported"])
    head, steps, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["run", "exported"]
    assert steps.split() == ["step", "2", "–"]
    assert all(len(row.split()) == 3 for row in rows)
    assert rows[0].startswith("eval/sampled_accuracy")


def test_answers_go_to_a_file(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.parquet"
    main(["eval", str(run.parent / "exported"), "--recipe", str(run), "--completions", str(file)])
    rows = parquet.read_table(file).to_pylist()
    assert [row["kind"] for row in rows] == ["sampled"] * 4 + ["greedy"] * 4


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["eval", "RUN", "--step", "7"], "has no checkpoint of step 7: there are 1, 2"),
        (["eval", "RUN", "--best"], "has no best checkpoint: it was trained without eval.best"),
        (["eval", "RUN", "RUN", "--completions", "x"], "--completions is about one TARGET"),
        (["eval", "RUN/checkpoints/step_x"], "is not a checkpoint"),
        (["eval", "RUN/nothing"], "does not exist"),
        (["eval", "RUN-2"], "has others, but not this one"),
        (["eval", "RUN/checkpoints"], "is neither a run nor a model"),
        (["eval"], "give a run folder or a model"),
        (["eval", "RUN", "--recipe", "x.toml"], "--recipe is for models"),
        (["eval", "RUN", "RUN-2"], "RUN-2: no run RUN-2"),
        (["export", "RUN", "x", "--private"], "--private belongs to --push"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], reason: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = refusal(capsys, *(word.replace("RUN", str(run)) for word in arguments))
    assert reason.replace("RUN", str(run)) in told


class FakeHub:
    """The two calls of the hub that `--push` makes."""

    calls: ClassVar[list[tuple[str, Any]]] = []

    def create_repo(self, name: str, *, private: bool, exist_ok: bool) -> Any:
        if "/" not in name:
            raise ValueError(f"Repo id must be user/name: {name}")
        self.calls.append(("create", (name, private, exist_ok)))
        return SimpleNamespace(repo_id=name)

    def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
        files = sorted(path.name for path in folder_path.iterdir())
        self.calls.append(("upload", (repo_id, files, commit_message)))


def test_a_chosen_step_is_pushed_to_the_hub(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    folder = tmp_path / "one"
    main(["export", str(run), str(folder), "--step", "1", "--push", "me/tiny", "--private"])
    assert "pushed to" in capsys.readouterr().out
    (_, created), (_, (name, files, message)) = FakeHub.calls
    assert created == ("me/tiny", True, True)
    assert name == "me/tiny"
    assert {"model.safetensors", "tokenizer.json", "critic"} <= set(files)
    assert message == "step 1 of run"
    with pytest.raises(SystemExit):
        main(["export", str(run), str(tmp_path / "two"), "--push", "tiny"])
    error = capsys.readouterr().err
    assert "cannot push to tiny: Repo id must be user/name: tiny" in error
    assert (tmp_path / "two" / "config.json").is_file()  # what was exported stays


def test_the_recipe_of_the_docs_trains(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    english, chinese = (block(page, "# evaluate.toml") for page in PAGES)
    assert tomllib.loads(english) == tomllib.loads(chinese)
    monkeypatch.chdir(tmp_path)
    recipe = tmp_path / "evaluate.toml"
    recipe.write_text(english, "utf-8")
    Path("my_rewards.py").write_text(block("evaluate.md", "# my_rewards.py"), "utf-8")
    rows = [{"prompt": "请问1+1=2？", "answer": "2", "level": level} for level in "ab"]
    for name in ("train", "test", "math"):
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    small = {
        "model.path": str(tiny_model),
        "steps": "10",
        "eval.every": "5",
        "eval.samples": "2",
        "rollout.batch_size": "2",
        "rollout.max_response_tokens": "4",
        "data.max_prompt_tokens": "16",
    }
    config = load_config(recipe, list(small.items()))
    found = Trainer(config).fit()
    documented = ["greedy_accuracy", "greedy_accuracy/a", "pass@4", "maj@4"]
    assert {f"eval/{name}" for name in documented} <= found.keys()
    assert {f"eval/math/{name}" for name in documented} <= found.keys()
    capsys.readouterr()
    script, same = (block(page, "# read_answers.py") for page in PAGES)
    assert script == same
    exec(script)
    assert len(capsys.readouterr().out.splitlines()) == 24  # 2 sets of 2 + 2 + 2 · 4 answers

    monkeypatch.setattr("huggingface_hub.HfApi", FakeHub)
    Path("my.toml").write_text(to_toml(config), "utf-8")
    here = {"runs/other": "runs/my-run", "org/model": str(tiny_model), "40": "10"}
    here["runs/my-run/checkpoints/step_000040"] = "runs/my-run/checkpoints/step_000010"
    for words in sorted(commands("evaluate.md"), key=lambda words: words[0] == "eval"):
        main([here.get(word, word) for word in words])
    assert parquet.read_table("answers.parquet").num_rows
