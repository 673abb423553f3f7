"""examples/own_estimator.py: a new estimator with its own setting, in a file outside the package."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from telescope import TelescopeError, Trainer, ledger
from telescope.algorithms import ESTIMATORS, Actions, Credit
from telescope.config import Config, load_config
from telescope.explain.terminal import render
from telescope.explain.trace import traces
from telescope.viewer.run_data import RunData
from tests import ROOT
from tests.test_every_algorithm import FAST, lengths, parity

SPEC = f"{ROOT / 'examples' / 'own_estimator.py'}:fading_outcome"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def config(make_config) -> Config:
    return make_config(*FAST, ("credit.estimator", SPEC), ("credit.fade", "0.5"))


def trained(config: Config) -> list:
    trainer = Trainer(config, reward={"lengths": lengths, "parity": parity})
    trainer.held_out = None
    trainer.fit()
    return ledger.samples(config.run_dir, trainer.step)


def test_it_trains_is_recorded_and_every_advantage_is_confirmed(config: Config) -> None:
    for sample in trained(config):
        assert sample.settings.credit.fade == 0.5
        written = [t for t, m in enumerate(sample.mask) if m]
        outcome = sum(sample.columns["token_level_rewards"])
        for place, t in enumerate(written):
            want = 0.5 ** (len(written) - 1 - place) * outcome
            assert sample.columns["advantages"][t] == pytest.approx(want, abs=1e-5)
            checks = {trace.name: trace.ok for trace in traces(sample, t)}
            assert checks["advantage"] is True
            assert not [name for name, ok in checks.items() if ok is False]


def test_a_wrong_advantage_is_found(config: Config) -> None:
    sample = trained(config)[0]
    wrong = [a + 1.0 for a in sample.columns["advantages"]]
    sample = replace(sample, columns={**sample.columns, "advantages": wrong})
    found = {trace.name: trace.ok for trace in traces(sample, sample.mask.index(1))}
    assert found["advantage"] is False


def test_it_is_explained_in_both_languages_and_for_a_child(config: Config) -> None:
    sample = trained(config)[0]
    english = render(sample, lang="en", color=False, width=100)
    assert "estimator fading_outcome" in english
    assert "= fade^(T−1−i)·o" in english
    assert "the less the farther it is from the end" in " ".join(english.split())
    assert "✗" not in english.replace("0 ✗", "")
    assert "离结尾越远越少" in render(sample, lang="zh", color=False, width=100)
    assert "离结尾越远分得越少" in render(sample, lang="zh", level="kid", color=False, width=100)


def test_it_appears_on_the_page(config: Config) -> None:
    trained(config)
    run = RunData(config.run_dir)
    step = run.steps()[-1]
    sample = run.sample(step, 0)
    assert sample.settings.by_name()["estimator"] == SPEC
    assert sample.settings.estimator_definition.name == "fading_outcome"


def test_a_ledger_from_somebody_else_does_not_run_the_code_that_it_names(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(config)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "of another user"))
    sample = ledger.samples(config.run_dir, 2)[0]
    found = {trace.name: trace for trace in traces(sample, sample.mask.index(1))}
    assert found["advantage"].ok is None
    assert "not available here" in render(sample, lang="en", color=False, width=100)


def test_its_setting_is_checked_like_any_other() -> None:
    with pytest.raises(
        TelescopeError, match=r"credit.fade = 2: input should be less than or equal"
    ):
        load_config(None, [("credit.estimator", SPEC), ("credit.fade", "2")])
    with pytest.raises(TelescopeError, match=r"no setting `credit\.fade`"):
        load_config(None, [("credit.fade", "0.5")])
    with pytest.raises(TelescopeError, match=r"own_estimator.py has no 'nothing'"):
        load_config(None, [("credit.estimator", SPEC.replace("fading_outcome", "nothing"))])


def test_it_survives_the_way_to_another_process() -> None:
    config = load_config(None, [("credit.estimator", SPEC), ("credit.fade", "0.5")])
    assert pickle.loads(pickle.dumps(config)) == config


def test_both_halves_of_the_definition_agree() -> None:
    definition = ESTIMATORS[SPEC]
    settings = definition.settings(fade=0.5)
    rewards = [[0.0, 1.0, 0.0, 2.0], [1.0, 0.0, 0.0, 0.0]]
    mask = [[1, 0, 1, 1], [1, 1, 0, 0]]

    class Batch(dict):
        pass

    batch = Batch(token_level_rewards=torch.tensor(rewards) * torch.tensor(mask))
    batch.mask = torch.tensor(mask).bool()
    credit: Credit = definition.implementation()(batch, settings)
    assert credit.advantages.tolist() == [[0.5, 0.0, 1.0, 2.0], [0.5, 1.0, 0.0, 0.0]]
    for row in range(2):
        at = [t for t, m in enumerate(mask[row]) if m]
        actions = Actions({"token_level_rewards": [rewards[row][t] for t in at]})
        definition.fill(actions, settings)
        assert actions["advantages"] == [credit.advantages[row, t].item() for t in at]
