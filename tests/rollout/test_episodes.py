"""Environments of the verifiers library: its own loop plays, our sampler answers on 127.0.0.1."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("verifiers")

from telescope.batch import TokenBatch
from telescope.config import Config, load_config
from telescope.data.arithmetic import make_tokenizer
from telescope.data.episodes import make_environment
from telescope.data.loader import Prompts
from telescope.errors import TelescopeError
from telescope.roles.reward import Reward
from telescope.rollout.episodes import Episodes
from telescope.rollout.sampler import sample_batch
from telescope.trainer import Trainer
from tests import ROOT
from tests.rollout.test_tools import TOKENIZER, Scripted
from tests.tiny import tiny_config

TOY = '''
import openai
import verifiers.v1 as vf
from verifiers.v1.runtimes import ProgramResult


class ToyTask(vf.Task):
    @vf.reward(weight=2.0)
    async def turns(self, trace) -> float:
        return float(trace.num_turns)

    @vf.metric
    async def half(self, trace) -> float:
        return 0.5


class ToyTaskset(vf.Taskset[ToyTask, vf.TasksetConfig]):
    def load(self):
        for number in range(10):
            yield ToyTask(vf.TaskData(prompt=f"1+{number}=2？", system_prompt="请问"), self.config.task)


class ToyHarness(vf.Harness[vf.HarnessConfig]):
    """A chat of two turns, in this process."""

    APPENDS_SYSTEM_PROMPT = True
    NEEDS_CONTAINER = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}, {"role": "user", "content": prompt}]
        async with openai.AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            for turn in range(2):
                reply = await client.chat.completions.create(model=ctx.model, messages=messages)
                content = reply.choices[0].message.content or ""
                messages += [{"role": "assistant", "content": content}, {"role": "user", "content": "不对"}]
        return ProgramResult(exit_code=0, stdout="", stderr="")


__all__ = ["ToyTaskset", "ToyHarness"]
'''


@pytest.fixture
def config(tmp_path: Path, model_copy: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    (tmp_path / "toy_episodes.py").write_text(TOY, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_episodes", raising=False)
    tokenizer = make_tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.content }}"
        "{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    )
    tokenizer.save_pretrained(model_copy)
    return tiny_config(
        tmp_path,
        model_copy,
        ("rollout.environment", "verifiers:toy_episodes"),
        ("rollout.environment_options", "{agent = {harness = {id = 'toy_episodes'}}}"),
        ("rollout.batch_size", "2"),
        ("rollout.max_response_tokens", "24"),
        ("eval.samples", "1"),
        ("eval.prompts", "1"),
        ("steps", "1"),
    )


def rolled(config: Config, script: list[str]) -> TokenBatch:
    """One episode in which the policy writes these turns."""
    tools = Episodes(config, TOKENIZER, config.model.path)
    data = [{"verifiers_task": 3}]
    asked = Prompts([[5]], {"prompt": [""], "prompt_index": [3], "data": data}, seed=0)
    return sample_batch(
        Scripted({0: script}), asked, TOKENIZER, torch.device("cpu"), greedy=False, tools=tools
    )


def test_sampled_tokens_stay_as_they_are_and_the_environments_words_have_mask_0(
    config: Config,
) -> None:
    batch = rolled(config, ["是的", "对"])
    (row,) = batch.info
    assert TOKENIZER.decode(batch.prompt_ids()[0]) == "请问1+3=2？"
    assert TOKENIZER.decode(row.response.ids) == "是的<eos>不对对<eos>"
    assert batch["response_mask"].tolist() == [[1, 1, 1, 0, 0, 1, 1]]
    assert row.response.last_turn == "对"
    assert not batch["truncated"].any()


def test_the_environments_reward_is_paid_on_the_last_token_and_its_metrics_are_reported(
    config: Config,
) -> None:
    batch = rolled(config, ["是的", "对"])
    scored = Reward({}).score(batch)
    assert scored["token_level_scores"].tolist() == [[0, 0, 0, 0, 0, 0, 4.0]]  # 2 turns, weight 2
    assert batch.info[0].response.state == {"rewards": {"turns": 4.0}, "metrics": {"half": 0.5}}


def test_a_run_trains_on_episodes(config: Config) -> None:
    metrics = Trainer(config).fit()
    assert metrics["reward/score_mean"] == metrics["reward/environment"] == 4.0
    assert metrics["response/tool_calls"] == 1.0


def test_episodes_that_all_fail_end_the_run_with_the_reason(config: Config, tmp_path: Path) -> None:
    toy = tmp_path / "toy_episodes.py"
    toy.write_text(
        TOY.replace("messages = [{", "raise OSError('no disk')\n        messages = [{", 1), "utf-8"
    )
    with pytest.raises(TelescopeError, match=r"every episode of the environment failed.*no disk"):
        rolled(config, [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rollout.environment", "verifiers:nosuch_taskset"), "cannot be made: ModuleNotFoundError"),
        (("backend", "ray"), "plays its episodes in one process: set backend = 'local'"),
        (("data.files", "rows.jsonl"), "has its own data: leave out data.files"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused(
    config: Config, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    base = ("rollout.environment", "verifiers:toy_episodes")
    with pytest.raises(TelescopeError, match=message):
        make_environment(tiny_config(tmp_path, Path(config.model.path), base, change))


@pytest.mark.parametrize("page", ["docs/tools.md", "docs/zh/tools.md"])
def test_the_recipe_of_the_docs_names_an_environment_of_verifiers(
    page: str, tmp_path: Path
) -> None:
    text = (ROOT / page).read_text("utf-8")
    (recipe,) = [one for one in re.findall(r"```toml\n(.*?)```", text, re.S) if "verifiers:" in one]
    path = tmp_path / "recipe.toml"
    path.write_text(recipe, "utf-8")
    config = load_config(path)
    assert config.verifiers_id == "gsm8k-v1"
    assert config.rollout.environment_options["agent"]["harness"] == {"id": "null"}
