"""A run's config may name code. It is imported only if this user has trained with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from telescope.algorithms.definitions.trust import MODEL_CODE, is_trusted, trust
from telescope.config import load_saved_config, named_code
from telescope.errors import TelescopeError

CODE = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\n"


@pytest.fixture(autouse=True)
def own_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)


def recipe(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('[credit]\nestimator = "{}"', "credit.estimator"),
        ('[actor]\nloss = "{}"', "actor.loss"),
        ('[critic]\nloss = "{}"', "critic.loss"),
        ('[reward]\nfunctions = ["{}"]', "reward.functions"),
        ('[reward]\nattention = "{}"', "reward.attention"),
        ('[rollout]\nenvironment = "{}"', "rollout.environment"),
        ('callbacks = ["{}"]', "callbacks"),
    ],
)
def test_unknown_code_in_a_runs_config_is_not_imported(text: str, shown: str, tmp_path: Path):
    code = tmp_path / "theirs.py"
    code.write_text(CODE)
    path = recipe(tmp_path, text.format(f"{code}:thing"))
    with pytest.raises(TelescopeError, match=f"{shown} = .*add --trust"):
        load_saved_config(path)
    assert not code.with_suffix(".ran").exists()


@pytest.mark.parametrize(
    "text",
    [
        '[reward]\nfunctions = ["https://example.org/score?key=secret"]',
        '[reward]\nfunctions = ["os:system"]',
        '[model]\npath = "theirs"\ntrust_remote_code = true',
        '[data]\ntask = "n_queens"',
        'backend = "ray"\n[ray]\naddress = "10.0.0.1:6379"',
    ],
)
def test_servers_modules_and_model_code_need_trust_too(text: str, tmp_path: Path):
    path = recipe(tmp_path, text)
    with pytest.raises(TelescopeError, match="add --trust") as error:
        load_saved_config(path)
    assert "secret" not in str(error.value)
    load_saved_config(path, trusted=True)
    trust(*named_code(load_saved_config(path, trusted=True).model_dump()))
    load_saved_config(path)


def test_a_tokenizer_with_code_needs_trust_of_its_own(tmp_path: Path):
    text = '[model]\npath = "mine"\ntokenizer_path = "{}"\ntrust_remote_code = true'
    path = recipe(tmp_path, text.format("mine"))
    trust(*named_code(load_saved_config(path, trusted=True).model_dump()))
    load_saved_config(path)
    path = recipe(tmp_path, text.format("theirs"))
    with pytest.raises(TelescopeError, match=r"trust_remote_code = 'theirs'.*add --trust"):
        load_saved_config(path)


def test_a_setting_of_the_command_line_replaces_the_files(tmp_path: Path):
    path = recipe(tmp_path, '[reward]\nfunctions = ["theirs.py:f"]')
    config = load_saved_config(path, [("reward.functions", "mine.py:f")])
    assert config.reward.functions == ["mine.py:f"]


def test_export_needs_no_trust_in_the_reward(tmp_path: Path):
    path = recipe(tmp_path, '[reward]\nfunctions = ["theirs.py:f"]')
    assert load_saved_config(path, functions=False).reward.functions == ["theirs.py:f"]


def test_code_is_trusted_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    mine = tmp_path / "mine.py"
    mine.write_text("x = 1")
    trust("mine.py:f")
    assert is_trusted(f"{mine}:f")
    monkeypatch.chdir("/")
    assert not is_trusted("mine.py:f")  # another file
    mine.write_text("x = 2")
    assert not is_trusted(f"{mine}:f")


def test_a_package_is_trusted_with_all_files_that_importing_it_runs(tmp_path: Path):
    package = tmp_path / "theirpackage"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    (package / "rewards.py").write_text("x = 1")
    trust("theirpackage.rewards:f")
    assert is_trusted("theirpackage.rewards:f")
    assert "theirpackage" not in sys.modules
    assert not (package / "__init__.ran").exists()
    (package / "__init__.py").write_text("import os")
    assert not is_trusted("theirpackage.rewards:f")


def test_model_code_is_trusted_until_a_python_file_changes(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "modeling.py").write_text("x = 1")
    trust(f"{MODEL_CODE}{model}")
    assert is_trusted(f"{MODEL_CODE}{model}")
    (model / "more.py").write_text("x = 2")
    assert not is_trusted(f"{MODEL_CODE}{model}")


def test_model_code_is_trusted_until_its_config_names_other_code(tmp_path: Path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "modeling.py").write_text("x = 1")
    (model / "config.json").write_text("{}")
    trust(f"{MODEL_CODE}{model}")
    (model / "config.json").write_text('{"auto_map": {"AutoModel": "theirs/code--modeling.Model"}}')
    assert not is_trusted(f"{MODEL_CODE}{model}")


def test_an_empty_config_is_refused(tmp_path: Path):
    with pytest.raises(TelescopeError, match="is empty"):
        load_saved_config(recipe(tmp_path, ""))


TABLES = [
    '[reward.options.judge]\nurl = "https://theirs.example"\nkey = "AWS_SECRET_ACCESS_KEY"',
    "[reward.options.python]\nallow_without_isolation = true",
    '[reward.headers.score]\nX = "${AWS_SECRET_ACCESS_KEY}"',
    '[rollout.environment_options.agent]\nruntime = {type = "subprocess"}',
]


@pytest.mark.parametrize("text", TABLES)
def test_options_that_send_keys_or_run_programs_need_trust(text: str, tmp_path: Path):
    """A stranger's run could otherwise send a key of this user anywhere."""
    path = recipe(tmp_path, text)
    section = text[1:].partition("]")[0].rpartition(".")[0]
    with pytest.raises(TelescopeError, match=f"{section} = .*add --trust") as error:
        load_saved_config(path)
    assert "AWS_SECRET" not in str(error.value)


def test_options_that_were_trained_with_are_trusted_until_they_change(tmp_path: Path):
    text = '[reward]\nfunctions = ["length"]\n[reward.options.length]\nmost = 5'
    path = recipe(tmp_path, text)
    trust(*named_code(load_saved_config(path, trusted=True).model_dump()))
    assert load_saved_config(path).reward.options == {"length": {"most": 5}}
    recipe(tmp_path, text.replace("5", "6"))
    with pytest.raises(TelescopeError, match="add --trust"):
        load_saved_config(path)
