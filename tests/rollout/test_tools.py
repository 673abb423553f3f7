"""Rollouts with tools: what the policy wrote and what a tool wrote, row by row."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.batch import ToolUse
from telescope.config import ModelConfig, RolloutConfig
from telescope.data.arithmetic import make_tokenizer
from telescope.data.loader import Prompts
from telescope.errors import DivergedError, TelescopeError
from telescope.models.load import load_policy
from telescope.roles.factory import make_tools
from telescope.rollout import tools as tools_module
from telescope.rollout.engine import GraphSampler
from telescope.rollout.environments import Environment
from telescope.rollout.sampler import GivenSampler, Rollout, TorchSampler, left_pad, sample_batch
from telescope.rollout.tools import Tools
from tests.fakes import EOS

ROWS = 8
CPU = torch.device("cpu")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENIZER = make_tokenizer()
CALL = TOKENIZER.convert_tokens_to_ids("？")


class Echo(Environment):
    """A turn that ends with ？ is answered by 等于 and the number of the turn; any other ends the response."""

    call_ends = ("？",)

    def reset(self, prompt: str, data: Any) -> list[str]:
        return []

    def step(self, state: list[str], text: str) -> str | None:
        state.append(text)
        return self.show(str(len(state))) if text.endswith("？") else None

    def show(self, text: str) -> str:
        return f"等于{text}"


class Scripted:
    """Row by number and turn by turn what it was given; remembers what it was asked."""

    version = 3

    def __init__(self, script: dict[int, list[str]]) -> None:
        self.script, self.turn = {row: iter(turns) for row, turns in script.items()}, 0
        self.asked: list[tuple[int, ...]] = []

    def load_weights(self, named: Any, version: int) -> None: ...

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        *,
        seed: int,
        greedy: bool,
        rows: Any,
        limits: Any,
    ) -> Rollout:
        self.asked.append(tuple(rows))
        ids = [TOKENIZER(next(self.script[row])).input_ids for row in rows]
        ids = [some if some[-1] == CALL else [*some, EOS] for some in ids]
        cut = [some[:limit] for some, limit in zip(ids, limits, strict=True)]
        width = max(map(len, cut))
        padded = torch.tensor([some + [0] * (width - len(some)) for some in cut])
        lengths = torch.tensor([len(some) for some in cut])
        numbers = -0.5 * (torch.arange(width) < lengths[:, None])
        return Rollout(
            padded,
            lengths,
            numbers,
            torch.tensor([len(some) > limit for some, limit in zip(ids, limits, strict=True)]),
        )


def prompts(count: int, **more: Any) -> Prompts:
    info = {"prompt": ["1+1"] * count, "data": [{}] * count, "prompt_index": list(range(count))}
    return Prompts([TOKENIZER("1+1").input_ids] * count, info, seed=5, **more)


def tools(environment: type[Environment] = Echo, **settings: Any) -> Tools:
    config = RolloutConfig(
        **{"environment": "tests:Echo", "max_response_tokens": 20, "max_turns": 4, **settings}
    )
    return Tools(environment(config), TOKENIZER, config)


def rolled(*turns: str, environment: type[Environment] = Echo, **settings: Any) -> Any:
    batch = sample_batch(
        Scripted({0: list(turns)}),
        prompts(1),
        TOKENIZER,
        CPU,
        greedy=False,
        tools=tools(environment, **settings),
    )
    return batch


def written(batch: Any, row: int = 0) -> str:
    """The response, what tools wrote in brackets."""
    ids, mask = batch.info[row].response.ids, batch["response_mask"][row].tolist()
    return "".join(
        TOKENIZER.decode([i]) if m else f"[{TOKENIZER.decode([i])}]"
        for i, m in zip(ids, mask, strict=False)
    )


def test_what_a_tool_wrote_has_mask_0_and_log_prob_0_and_is_there() -> None:
    batch = rolled("是？", "不")
    assert written(batch) == "是？[等于][1]不<eos>"
    assert batch["response_mask"].tolist() == [[1, 1, 0, 0, 1, 1]]
    assert batch["rollout_log_probs"].tolist() == [[-0.5, -0.5, 0, 0, -0.5, -0.5]]
    assert batch["attention_mask"][0].tolist() == [1] * 9
    assert batch["position_ids"][0].tolist() == list(range(9))
    assert batch["truncated"].tolist() == [False]
    assert batch["policy_version"].tolist() == [3]
    assert batch.info[0].response.last_turn == "不"
    assert batch.info[0].tools == ToolUse(calls=1, failures=0)


def test_rows_at_different_turns_share_a_batch_and_keep_their_own_numbers() -> None:
    sampler = Scripted({4: ["是？", "的？", "不"], 2: ["对"], 7: ["是？", "吗"]})
    some = Prompts(prompts(3).ids, prompts(3).info, 5, [4, 2, 7])
    batch = sample_batch(sampler, some, TOKENIZER, CPU, greedy=False, tools=tools())
    assert sampler.asked == [(4, 2, 7), (4, 7), (4,)]
    assert [written(batch, i) for i in range(3)] == [
        "是？[等于][1]的？[等于][2]不<eos>",
        "对<eos>",
        "是？[等于][1]吗<eos>",
    ]
    assert batch["sample"].tolist() == [4, 2, 7]
    assert batch["response_mask"].sum(1).tolist() == [6, 2, 4]
    assert batch["attention_mask"][:, 3:].sum(1).tolist() == [10, 2, 6]


def test_the_limit_of_tokens_cuts_a_turn_or_what_a_tool_says() -> None:
    in_turn = rolled("是？", "不不不不", max_response_tokens=6)
    assert written(in_turn) == "是？[等于][1]不不"
    in_reply = rolled("是？", max_response_tokens=3)
    assert written(in_reply) == "是？[等于]"
    exactly = rolled("是？", "不", max_response_tokens=6)
    assert [batch["truncated"].tolist() for batch in (in_turn, in_reply, exactly)] == [
        [True],
        [True],
        [False],
    ]


def test_after_the_last_turn_no_tool_is_asked_for_what_nobody_would_read() -> None:
    batch = rolled("是？", "的？", "不？", max_turns=2)
    assert written(batch) == "是？[等于][1]的？"
    assert batch["truncated"].tolist() == [True]


class Broken(Echo):
    def step(self, state: list[str], text: str) -> str | None:
        if text.startswith("是"):
            raise ZeroDivisionError("by\n0")
        return sys.exit(3) if text.startswith("的") else 7 if text.startswith("对") else None  # type: ignore[return-value]

    def show(self, text: str) -> str:
        self.said = [*getattr(self, "said", []), text]
        return "不对"


def test_an_environment_that_cannot_begin_is_named_with_what_it_was_given() -> None:
    class Dice(Echo):
        def reset(self, prompt: str, data: Any) -> Any:
            return data["seed"]

    with pytest.raises(
        TelescopeError, match="environment Dice: reset raised KeyError: 'seed'; its data has "
    ):
        rolled("对。", environment=Dice)


def test_a_tool_that_raises_or_exits_or_returns_no_text_becomes_a_message() -> None:
    used = tools(Broken, max_turns=5)
    batch = sample_batch(
        Scripted({0: ["是？", "的？", "对？", "吗"]}),
        prompts(1),
        TOKENIZER,
        CPU,
        greedy=False,
        tools=used,
    )
    assert written(batch) == "是？[不][对]的？[不][对]对？[不][对]吗<eos>"
    for message in (
        "error: ZeroDivisionError: by 0",
        "error: SystemExit: 3",
        "error: TypeError: a tool returned int, not text",
    ):
        assert message in used.environment.said
    assert batch.info[0].tools == ToolUse(3, 3, "TypeError: a tool returned int, not text")


class Hanging(Echo):
    def step(self, state: list[str], text: str) -> str | None:
        if text.startswith("是"):
            threading.Event().wait(30)
        return super().step(state, text)


def test_a_tool_that_hangs_becomes_a_message_after_its_seconds_and_costs_other_rows_nothing() -> (
    None
):
    sampler, start = Scripted({0: ["是？", "不"], 1: ["的？", "对"]}), time.monotonic()
    batch = sample_batch(
        sampler,
        prompts(2),
        TOKENIZER,
        CPU,
        greedy=False,
        tools=tools(Hanging, tool_seconds=0.2, max_response_tokens=80),
    )
    assert time.monotonic() - start < 5
    assert [row.tools.failures for row in batch.info] == [1, 0]
    assert written(batch, 1) == "的？[等于][1]对<eos>"
    assert written(batch, 0).startswith("是？[等于][<unk>]")
    assert written(batch, 0).endswith("不<eos>")


class Talking(Echo):
    """Calls end with EOS, as in chats: there is no mark for it."""

    call_ends = ()

    def step(self, state: list[str], text: str) -> str | None:
        return "等于" if text == "是" else None


def test_a_turn_that_ends_with_eos_may_be_a_call_too() -> None:
    assert written(rolled("是", "不", environment=Talking)) == "是<eos>[等于]不<eos>"


class Wordy(Echo):
    call_ends = ("等于？",)  # two tokens: no sampler stops there

    def step(self, state: list[str], text: str) -> str | None:
        return "的" if text.endswith("等于？") else None


def test_past_an_end_of_call_of_several_tokens_nothing_is_kept() -> None:
    used, given = (
        tools(Wordy),
        [TOKENIZER("是等于？不不").input_ids, [*TOKENIZER("对").input_ids, EOS]],
    )
    batch = sample_batch(GivenSampler(given), prompts(1), TOKENIZER, CPU, greedy=False, tools=used)
    assert used.stop == []
    assert written(batch) == "是等于？[的]对<eos>"


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Any:
    return load_policy(ModelConfig(path=str(tiny_model)), DEVICE)


class Often(Echo):
    """Many tokens are calls, so that a random model makes some."""

    call_ends = tuple("？+=的吗019")

    def step(self, state: list[str], text: str) -> str | None:
        return "等于2" if text[-1:] in self.call_ends else None


def sampled(
    model: Any, some: Prompts, kind: type[TorchSampler] = TorchSampler, *, with_tools: bool = True
) -> Any:
    used = tools(Often, max_response_tokens=12, max_turns=3)
    sampler = kind(model, used.config, stop=[EOS, *used.stop], pad=0)
    sampler.capture = False  # type: ignore[attr-defined]
    return sample_batch(
        sampler, some, TOKENIZER, DEVICE, greedy=False, tools=used if with_tools else None
    )


@pytest.mark.parametrize("kind", [TorchSampler, GraphSampler])
def test_draws_are_reproducible_and_independent_of_the_rows_beside(
    model: Any, kind: type[TorchSampler]
) -> None:
    everything = sampled(model, prompts(ROWS), kind)
    calls = [row.tools.calls for row in everything.info]
    assert max(calls) >= 2  # rows at several turns
    assert min(calls) < 2
    part = sampled(model, prompts(ROWS).part([4, 3, 6]), kind)
    assert [row.response for row in part.info] == [everything.info[i].response for i in (4, 3, 6)]
    assert len({tuple(row.response.ids) for row in everything.info}) == ROWS


@pytest.mark.parametrize("kind", [TorchSampler, GraphSampler])
def test_sampled_ids_are_kept_and_their_log_probs_are_those_of_the_whole_sequence(
    model: Any, kind: type[TorchSampler]
) -> None:
    from telescope.models.forward import policy_forward

    batch = sampled(model, prompts(ROWS), kind)
    with torch.no_grad():
        whole = policy_forward(model, batch, temperature=1.0).log_probs
    assert torch.allclose(batch["rollout_log_probs"][batch.mask], whole[batch.mask], atol=1e-4)
    assert (batch["rollout_log_probs"][~batch.mask] == 0).all()
    assert int(batch["attention_mask"][:, 3:].sum(1).max()) <= 12
    assert bool(batch["truncated"].any())


def test_the_first_turn_is_drawn_as_it_is_without_tools(model: Any) -> None:
    alone, used = sampled(model, prompts(ROWS), with_tools=False), sampled(model, prompts(ROWS))
    for one, other in zip(alone.info, used.info, strict=True):
        plain, ids = one.response.ids, other.response.ids
        assert ids[: len(plain)] == plain


def test_a_sampler_writes_no_more_than_each_rows_limit(model: Any) -> None:
    ids, mask = left_pad(prompts(6).ids, 0, DEVICE)
    for kind in (TorchSampler, GraphSampler):
        sampler = kind(model, RolloutConfig(max_response_tokens=20), stop=[99], pad=0)
        sampler.capture = False  # type: ignore[attr-defined]
        out = sampler.generate(ids, mask, seed=1, limits=[7, 1, 3, 7, 6, 2])
        assert out.lengths.tolist() == [7, 1, 3, 7, 6, 2]
        assert out.truncated.all()
        assert out.responses.shape == out.log_probs.shape == (6, 7)
        written = torch.arange(7, device=DEVICE) < out.lengths[:, None]
        assert torch.equal(out.log_probs < 0, written)


class Meeting:
    """Two processes of which the other one has one round more."""

    size, rank = 2, 0

    def __init__(self) -> None:
        self.rounds = 0

    def max(self, number: int) -> int:
        self.rounds += 1
        return 1 if self.rounds < 4 else number


def test_a_process_whose_rows_have_ended_goes_on_meeting_the_others() -> None:
    used, sampler = tools(), Scripted({0: ["是", "不", "不"]})
    used.ranks = Meeting()  # type: ignore[assignment]
    batch = sample_batch(sampler, prompts(1), TOKENIZER, CPU, greedy=False, tools=used)
    assert len(sampler.asked) == 3
    assert written(batch) == "是<eos>"


def test_an_environment_that_never_answers_is_refused_before_the_first_rollout() -> None:
    class Silent(Environment):
        pass

    with pytest.raises(TypeError, match="step"):  # make_tools says it in one line
        tools(Silent)


def test_a_huge_reply_is_cut_before_it_is_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Huge(Echo):
        def step(self, state: list[str], text: str) -> str | None:
            return "1" * 20_000_000

    seen = []
    call = type(TOKENIZER).__call__

    def counted(self: Any, text: Any, **more: Any) -> Any:
        seen.append(len(text))
        return call(self, text, **more)

    monkeypatch.setattr(type(TOKENIZER), "__call__", counted)
    batch = rolled("1+1？", environment=Huge)
    assert max(seen) <= 20 * 64
    assert batch["responses"].shape[1] == 20


def test_tools_that_never_return_end_the_run_before_their_threads_pile_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tools_module, "MOST_LATE", 3)
    monkeypatch.setattr(tools_module, "_late", [])
    leave = threading.Event()
    hang: list[Any] = [leave.wait] * 2
    assert list(tools_module.run_parallel(hang, 0.01)) == [None, None]
    with pytest.raises(TelescopeError, match="4 calls of tools have not returned"):
        list(tools_module.run_parallel(hang, 0.01))
    leave.set()


def test_probabilities_that_are_not_numbers_are_refused() -> None:
    class Broken(Scripted):
        def generate(self, *given: Any, **more: Any) -> Rollout:
            out = super().generate(*given, **{"limits": [20], **more})
            return replace(out, log_probs=out.log_probs * float("nan"))

    with pytest.raises(DivergedError, match="probabilities are not numbers"):
        sample_batch(
            Broken({0: ["1+1"]}), prompts(1, rows=[0]), TOKENIZER, CPU, greedy=True, tools=None
        )


def test_an_environment_that_is_a_list_is_refused(make_config, tmp_path: Path) -> None:
    (tmp_path / "envs.py").write_text("def both(config):\n    return [1, 2]\n")
    config = make_config(("rollout.environment", f"{tmp_path}/envs.py:both"))
    with pytest.raises(TelescopeError, match="is a list: name one class that inherits from"):
        make_tools(config, TOKENIZER)
