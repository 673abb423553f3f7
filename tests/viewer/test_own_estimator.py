"""An estimator from a user's file appears on the page and in explain without a table of names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from telescope.algorithms.definitions.trust import trust
from telescope.explain.sample import Sample
from telescope.explain.terminal import render
from telescope.explain.trace import Tracer
from telescope.viewer.payload import page_sample, page_traces
from telescope.viewer.report import write_report
from telescope.viewer.run_data import RunData
from telescope.viewer.whatif import WhatIf
from tests.viewer.fake import data_of_report, fake_run, lesson, step_of

CODE = """
from pydantic import Field
from telescope.algorithms.definitions import estimator
from telescope.algorithms.definitions.base import Needs, Rule, Settings, Words
from telescope.algorithms.definitions.critic import DELTAS, RETURNS

class FadingSettings(Settings):
    keep: float = Field(0.5, ge=0, le=1, description="share of the next token's advantage")

def advantage(x, s, k):
    return x["deltas"][k] + s.keep * x.after("advantages", k)

@estimator(
    formula="A_t = δ_t + keep·A_n",
    settings=FadingSettings,
    needs=Needs(critic=True),
    rules=(DELTAS, Rule("advantages", ("deltas",), advantage), RETURNS),
    words=Words(zh="逐渐淡去", en="fades with distance"),
    texts={"advantage": Words(zh="它逐渐淡去", en="it fades with distance")},
)
def fading(batch, settings):
    raise NotImplementedError
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = tmp_path / "mine.py"
    path.write_text(CODE, "utf-8")
    spec = f"{path}:fading"
    trust(spec)
    return spec


def samples(name: str) -> list[Sample]:
    own = lesson()[0].settings.change(estimator=name)
    kept = ("rollout_log_probs", "old_log_probs", "ref_log_prob", "values", "token_level_scores")
    bare = [
        replace(
            one,
            settings=own,
            columns={column: one.columns[column] for column in kept},
            whiten_mean=None,
            whiten_std=None,
            actor_updates=[],
            critic_updates=[],
        )
        for one in lesson()
    ]
    return step_of(bare, 40)


def test_its_words_and_numbers_are_explained(name: str) -> None:
    one = samples(name)[0]
    for lang, said in (("en", "it fades with distance"), ("zh", "它逐渐淡去")):
        text = render(one, token=3, lang=lang, width=100, color=False)
        assert said in text
        assert "✗" not in text.replace("0 ✗", "")


def test_the_page_offers_it_and_draws_its_weights(name: str, tmp_path: Path) -> None:
    run = fake_run(tmp_path / "run", {40: samples(name)})
    data = RunData(run)
    offered = {offer["name"]: offer for offer in data.step(40)["offers"]}
    assert offered[name]["label"] == "fading"
    assert offered[name]["available"]
    assert offered[name]["recursion"] is None  # it says nothing about λ: Python computes it
    assert [setting["name"] for setting in offered[name]["settings"]] == ["keep"]
    one = data.sample(40, 0)
    assert page_sample(one)["weights"] == pytest.approx([0.5**k for k in range(7)])
    words: dict[str, object] = {}
    found = {trace["name"]: trace for trace in page_traces(Tracer(one), 3, words)}
    assert found["advantage"]["ok"]
    assert "it fades with distance" in str(words)
    html = write_report(run, tmp_path / "r.html").read_text("utf-8")
    assert name in json.dumps(data_of_report(html))


def test_a_what_if_leaves_it_and_comes_back(name: str, tmp_path: Path) -> None:
    data = RunData(fake_run(tmp_path / "run", {40: samples(name)}))
    recorded = data.recorded(40).column("advantages")
    assert recorded is not None
    by_gae = data.whatif(40, WhatIf.of_names("gae", lam=0.5))
    again = data.whatif(40, WhatIf.of_names(name))
    slower = data.whatif(40, WhatIf.of_names(name, keep=0.25))
    assert by_gae.columns["advantages"].tolist() == pytest.approx(recorded.tolist(), abs=1e-6)
    assert again.columns["advantages"].tolist() == pytest.approx(recorded.tolist(), abs=1e-6)
    assert slower.weights(0) == pytest.approx([0.25**k for k in range(4)])
