"""`ledger.prompts`: greedy answers to fixed held-out prompts, recorded at every evaluation."""

from __future__ import annotations

from collections.abc import Callable

from telescope import Config, Trainer, ledger
from telescope.viewer.api import Api
from telescope.viewer.runs import Runs
from tests.run.compared import rows

Make = Callable[..., Config]

BASE = (("steps", "2"), ("eval.every", "1"), ("eval.prompts", "3"), ("eval.samples", "3"))


def reward(response_ids: list[list[int]]) -> list[float]:
    return [len(ids) / 6 for ids in response_ids]


def test_fixed_prompts_are_recorded_at_every_evaluation_and_change_nothing(
    make_config: Make,
) -> None:
    plain = make_config(*BASE, ("name", "plain"))
    Trainer(plain, reward=reward).fit()
    config = make_config(*BASE, ("name", "fixed"), ("ledger.prompts", "2"))
    Trainer(config, reward=reward).fit()
    assert rows(config) == rows(plain)
    assert ledger.reader.steps(plain.run_dir, "eval") == []
    assert ledger.reader.steps(config.run_dir, "eval") == [0, 1, 2]
    assert ledger.steps(config.run_dir) == [1, 2]
    tables = [ledger.reader.read(config.run_dir, step, kind="eval") for step in (0, 1, 2)]
    first = tables[0].column("prompt").to_pylist()
    assert len(first) == 2
    for table in tables:
        assert table.column("prompt").to_pylist() == first
        assert {"values", "kl", "deltas", "advantages", "returns"} <= set(table.column_names)
        assert "whitened" not in table.column_names  # that is over a training batch
        sample = ledger.reader.sample_of(table, 0)
        assert sample.actor_updates == []
    assert any(sample.columns["values"])  # of the last; an untrained critic says 0


def test_the_page_offers_a_fixed_prompt_with_its_evaluations(make_config: Make) -> None:
    config = make_config(*BASE, ("ledger.prompts", "1"), ("ledger.every", "2"))
    Trainer(config, reward=reward).fit()
    base = f"/api/runs/{config.run_dir.name}"
    api = Api(Runs(config.run_dir))
    most = api.answer(f"{base}/prompts")["prompts"][0]
    found = api.answer(f"{base}/prompts/{most['key']}")["rows"]
    evaluated = [row for row in found if row["kind"] == "eval"]
    assert [(row["step"], row["position"]) for row in evaluated] == [(0, 0), (1, 0), (2, 0)]
    answer = api.answer(f"{base}/evaluations/1/samples/0")
    assert answer["columns"]["advantages"]
    assert answer["length"] == evaluated[1]["length"]


def test_without_a_critic_an_answer_alone_has_no_advantage(make_config: Make) -> None:
    config = make_config(
        *BASE, ("credit.estimator", "grpo"), ("rollout.n", "4"), ("ledger.prompts", "1")
    )
    Trainer(config, reward=reward).fit()
    table = ledger.reader.read(config.run_dir, 2, kind="eval")
    assert "advantages" not in table.column_names
    assert table.column("score").to_pylist()[0] > 0
