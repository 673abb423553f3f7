"""Environments that pay, report their state and show their tools; tools that keep failing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.batch import Response, RowInfo, ToolUse
from telescope.config import DataConfig, RolloutConfig
from telescope.data.arithmetic import make_tokenizer
from telescope.data.loader import PromptSet
from telescope.errors import TelescopeError
from telescope.roles.reward import Reward
from telescope.rollout.environments import Environment, Paid
from telescope.rollout.sampler import sample_batch
from telescope.rollout.tools import Tools
from telescope.run.trouble import Trouble
from telescope.trainer import Trainer
from tests import ROOT
from tests.fakes import hand_batch
from tests.refusals import Job, refusal
from tests.rollout.test_tools import Scripted, prompts

TOKENIZER = make_tokenizer()


class Paying(Environment):
    """Pays 1 for a first turn, 2 for a second one, and ends there."""

    call_ends = ("？",)

    def reset(self, prompt: str, data: Any) -> dict[str, int]:
        return {"turns": 0}

    def step(self, state: dict[str, int], text: str) -> str | Paid | None:
        state["turns"] += 1
        return Paid("等于" if state["turns"] == 1 else None, float(state["turns"]))

    def report(self, state: dict[str, int]) -> dict[str, int]:
        return state


def rolled(environment: type[Environment], *turns: str) -> Any:
    tools = Tools(environment(RolloutConfig()), TOKENIZER, RolloutConfig())
    return sample_batch(
        Scripted({0: list(turns)}), prompts(1), TOKENIZER, torch.device("cpu"), greedy=False, tools=tools
    )  # fmt: skip


def test_a_turn_is_paid_on_its_last_token() -> None:
    batch = rolled(Paying, "是的？", "对")
    scored = Reward({}, {"environment": 0.5}).score(batch)
    own = scored.scores[0]
    assert (own.total, own.parts, own.weights) == (1.5, {"environment": 3.0}, {"environment": 0.5})
    paid = dict(batch.info[0].response.paid)
    assert list(paid.values()) == [1.0, 2.0]
    for place, amount in paid.items():
        assert scored["response_mask"][0, place] == 1
        assert scored["token_level_scores"][0, place] == 0.5 * amount


def test_what_is_paid_adds_to_the_functions_scores() -> None:
    scored = Reward({"one": lambda completions: [1.0]}).score(rolled(Paying, "是？", "对"))
    assert scored.scores[0].parts == {"one": 1.0, "environment": 3.0}


def test_an_environment_that_pays_nothing_is_no_part() -> None:
    scored = Reward({"one": lambda completions: [1.0]}).score(hand_batch([[1]]))
    assert scored.scores[0].parts == {"one": 1.0}


def test_the_last_state_reaches_the_function_as_a_copy() -> None:
    batch = rolled(Paying, "是？", "对")

    def changes(states):
        states[0]["turns"] = 99
        return [0.0]

    def counts(states):
        return [states[0]["turns"]]

    assert Reward({"changes": changes, "counts": counts}).score(batch).scores[0].total == 2.0 + 3.0


def test_a_payment_that_is_no_number_is_a_failure_of_the_tool() -> None:
    class Wrong(Paying):
        def step(self, state: Any, text: str) -> Paid:
            return Paid("等于", float("nan"))

    batch = rolled(Wrong, "是？", "对？", "吗？", "是")
    assert batch.info[0].tools.failures > 0
    assert "not a finite number" in batch.info[0].tools.error
    assert batch.info[0].response.paid == []


def test_a_report_that_raises_is_told() -> None:
    class Wrong(Paying):
        def report(self, state: Any) -> Any:
            raise KeyError("turns")

    with pytest.raises(TelescopeError, match="environment Wrong: report raised KeyError"):
        rolled(Wrong, "是？", "对")


WITH_TOOLS = (
    "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    "{% for message in messages %}{{ message.content }}{% endfor %}"
)


def roll(sides: int) -> int:
    """Rolls a die.

    Args:
        sides: how many sides it has
    """
    return sides


SCHEMA = {"type": "function", "function": {"name": "look", "parameters": {}}}


def test_tools_go_through_the_chat_template() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = WITH_TOOLS
    rows = [{"prompt": [{"role": "user", "content": "1+1"}]}, {"prompt": "1+1"}]
    tokenizer.shown_tools = (roll, SCHEMA)
    made = PromptSet(rows, tokenizer, DataConfig())
    assert made.texts == ["[roll][look]1+1", "1+1"]


def test_a_template_without_tools_is_refused() -> None:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    rows = [{"prompt": [{"role": "user", "content": "1+1"}]}]
    tokenizer.shown_tools = (SCHEMA,)
    with pytest.raises(TelescopeError, match="chat template does not show tools"):
        PromptSet(rows, tokenizer, DataConfig())


FAILING = """
from telescope.rollout.environments import Environment, Paid

class Failing(Environment):
    call_ends = tuple("0123456789+=？是的对不吗等")
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    def step(self, state, text):
        raise RuntimeError(f"the database is down: {text}")

class Paying(Environment):
    call_ends = Failing.call_ends

    def step(self, state, text):
        return Paid(None, 0.25)
"""


def test_a_tool_that_keeps_failing_is_told_on_the_terminal(
    job: Job, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "envs.py").write_text(FAILING)
    config = job(("rollout.environment", f"{tmp_path}/envs.py:Failing"))
    trainer = Trainer(config, reward=lambda prompts: [0.0] * len(prompts))
    (shown,) = trainer.roles.actor.tokenizer.shown_tools
    assert shown["function"]["name"] == "look"
    trainer.fit()
    told = [line for line in capsys.readouterr().out.splitlines() if "a tool failed" in line]
    assert re.match(
        r"step \d: a tool failed: RuntimeError: the database is down.* times so far\)", told[0]
    )


def test_a_run_trains_on_what_the_environment_pays_alone(job: Job, tmp_path: Path) -> None:
    (tmp_path / "envs.py").write_text(FAILING)
    config = job(
        ("rollout.environment", f"{tmp_path}/envs.py:Paying"),
        ("reward.weights", "{environment = 4}"),
    )
    metrics = Trainer(config).fit()
    ended = 1 - metrics["response/truncated"]
    assert ended > 0
    assert metrics["reward/environment"] == pytest.approx(0.25 * ended)
    assert metrics["reward/score_mean"] == pytest.approx(ended)


def test_a_function_called_environment_is_refused(job: Job) -> None:
    assert "cannot be called 'environment'" in refusal(job(), {"environment": len})


def row(error: str | None, failures: int) -> RowInfo:
    return RowInfo(response=Response("r", [1]), tools=ToolUse(failures, failures, error))


def test_a_failure_is_told_when_it_has_happened_three_times_and_then_ten_times_as_often() -> None:
    batch = hand_batch([[1]])
    trouble = Trouble()

    def after(step: int, *rewards: str, failures: int = 0) -> list[str]:
        tools = ToolUse(failures, failures, f"ValueError: {step}" if failures else None)
        return trouble.lines(step, batch.with_info(tools=[tools]), rewards)

    assert after(1, failures=2) == []
    assert after(2, failures=1) == ["step 2: a tool failed: ValueError: 2 (3 times so far)"]
    assert after(3, failures=9) == []
    assert after(4, failures=18) == ["step 4: a tool failed: ValueError: 4 (30 times so far)"]
    assert after(5, "the judge failed", "the judge failed") == []
    assert after(6, "the judge failed") == ["step 6: the judge failed (3 times so far)"]


def test_the_environment_of_the_docs_pays_and_reports() -> None:
    for page in ("docs/tools.md", "docs/zh/tools.md"):
        text = (ROOT / page).read_text("utf-8")
        (source,) = [one for one in re.findall(r"```python\n(.*?)```", text, re.S) if "Paid" in one]
        space: dict[str, Any] = {}
        exec(source, space)
        game = space["Guess"](RolloutConfig())
        state = game.reset("", {"number": 7})
        assert game.step(state, "<guess>5</guess>") == Paid("<result>higher</result>", 0.0)
        assert game.step(state, "<guess>7</guess>") == Paid(None, 1.0)
        assert space["few_guesses"]([game.report(state)]) == [-0.2]
        assert game.tools[0]["function"]["name"] == "guess"
