"""The four roles on a typed prompt, and how the terminal shows them."""

from __future__ import annotations

import re

import pytest
from rich.cells import cell_len

from telescope import Trainer
from telescope.algorithms.definitions.notation import num
from telescope.errors import TelescopeError
from telescope.explain.sample import Sample
from telescope.explain.stages import flow, modules
from telescope.explain.trace import traces
from telescope.run.live import explain_pair


def assert_recomputed(sample: Sample) -> None:
    """Every recorded number agrees with the recomputed one."""
    for t in range(len(sample)):
        for trace in traces(sample, t):
            assert trace.recorded is None or trace.ok


def test_the_four_roles_show_their_output_for_a_pair(make_config) -> None:
    config = make_config(("steps", "1"))
    Trainer(config).fit()
    sample, outputs = explain_pair("请问1+1=2？", "是的，等于2！", str(config.run_dir))
    shapes = {output.name: output.shape for output in outputs}
    assert shapes["input_ids"] == shapes["attention_mask"] == [1, 14]
    for name in ("responses", "old_log_probs", "values", "ref_log_prob"):
        assert shapes[name] == [1, 7]
    tokens = [token.decode() for token in sample.token_bytes]
    assert tokens == ["是", "的", "，", "等于", "2", "！", "<eos>"]
    assert sample.columns["token_level_scores"] == [0, 0, 0, 0, 0, 0, 1]
    assert sample.parts == {"verdict": 1.0, "sum": 1.0}
    assert sample.actor_updates[0].ratio == [1.0] * 7
    assert sample.step == 1
    by_name = {output.name: output for output in outputs}
    assert by_name["prompts"].tokens == ["请问", "1", "+", "1", "=", "2", "？"]
    makers = {
        "responses": "given",
        "old_log_probs": "actor.compute_log_prob(batch)",
        "values": "critic.compute_values(batch)",
        "ref_log_prob": "reference.compute_log_prob(batch)",
        "token_level_scores": "reward.compute_reward(batch)",
    }
    assert {name: by_name[name].maker for name in makers} == makers


def test_a_wrong_answer_scores_its_parts(make_config, tiny_model) -> None:
    sample, _ = explain_pair("你知道1+1=3吗？", "是的，等于2！", str(tiny_model))
    assert sample.parts == {"verdict": 0.0, "sum": 1.0}


def test_an_empty_response_is_refused(tiny_model) -> None:
    with pytest.raises(TelescopeError, match="the response is empty"):
        explain_pair("请问1+1=2？", "", str(tiny_model))


def test_without_a_response_the_actor_answers_the_same_each_time(make_config) -> None:
    config = make_config(("steps", "1"))
    Trainer(config).fit()
    sample, outputs = explain_pair("请问1+1=2？", None, str(config.run_dir))
    assert explain_pair("请问1+1=2？", None, str(config.run_dir))[0].token_ids == sample.token_ids
    makers = {output.name: output.maker for output in outputs}
    assert makers["responses"] == makers["rollout_log_probs"] == "actor.generate_sequences(prompts)"
    assert sample.columns["rollout_log_probs"] == pytest.approx(
        sample.columns["old_log_probs"], abs=1e-4
    )


def test_a_prompt_that_the_task_cannot_score_takes_a_score_by_hand(tiny_model) -> None:
    with pytest.raises(TelescopeError, match=r"请问1\+1=2？.*--score"):
        explain_pair("天空是什么颜色？", "是的", str(tiny_model))
    sample, _ = explain_pair("天空是什么颜色？", "是的", str(tiny_model), score=0.7)
    assert sample.score == 0.7
    assert sample.columns["token_level_scores"] == pytest.approx([0, 0, 0.7])


def test_a_score_that_float32_cannot_square_is_refused(tiny_model) -> None:
    for score in (1e39, 1e19, float("nan"), float("inf"), float("-inf")):
        told = r"--score \S+: give a number between −1e\+18 and 1e\+18"
        with pytest.raises(TelescopeError, match=told):
            explain_pair("请问1+1=2？", "是的", str(tiny_model), score=score)
    sample, _ = explain_pair("请问1+1=2？", "是的", str(tiny_model), score=-1e18)
    assert_recomputed(sample)


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_what_the_stages_made_stays_within_the_terminal(tiny_model, lang, width) -> None:
    for response in ("是的，等于2！", None):
        sample, outputs = explain_pair("请问1+1=2？", response, str(tiny_model))
        text = modules(outputs, lang, width)
        assert max(map(cell_len, text.splitlines())) <= width
        assert ("generate_sequences" in text) == (response is None)
        table = {line.split()[0]: line for line in text.splitlines() if line.startswith("  ")}
        assert cell_len(table["kl"]) == cell_len(table["returns"])  # aligned
        drawn = flow(sample, lang, width, given=response is not None)
        assert max(map(cell_len, drawn.splitlines())) <= width
        assert ("generate_sequences" in drawn) == (response is None)


def test_the_flow_holds_the_numbers_of_the_sample(tiny_model) -> None:
    sample, _ = explain_pair("请问1+1=2？", "是的，等于2！", str(tiny_model))
    drawn = flow(sample, "en", 80, 3, given=True)
    shown = ("values", "ref_log_prob", "token_level_scores", "token_level_rewards")
    for name in (*shown, "deltas", "advantages", "returns"):
        number = re.escape(num(sample.columns[name][3]))
        line = rf"{name}\[i\][^\n]*\n?[^\n]* = {number} +\[1, 7\]"
        assert re.search(line, drawn), name
    assert drawn.count("▼") == 3 + 1 + 2


@pytest.mark.parametrize(
    ("prompt", "response", "parts"),
    [
        ("你知道1+1=2吗？", "是的，1+1=2", (1.0, 1.0)),
        ("你知道1+1=2吗？", "是的，等于2！", (1.0, 1.0)),
        ("请问1+1=2？", "是的，1+1=2！", (1.0, 1.0)),
        ("你知道1+1=3吗？", "不对，1+1=2", (1.0, 1.0)),
        ("你知道1+1=2吗？", "是的，1+1=3", (1.0, 0.0)),
        ("你知道1+1=2吗？", "是的，0+2=2", (1.0, 0.0)),  # a sum that was not asked for
        ("你知道1+1=2吗？", "不对，1+1=2", (0.0, 1.0)),
    ],
)
def test_a_response_may_write_its_sum_out(tiny_model, prompt, response, parts) -> None:
    sample, outputs = explain_pair(prompt, response, str(tiny_model))
    assert tuple(sample.parts.values()) == parts
    assert not any("<unk>" in token for output in outputs for token in output.tokens)
    assert_recomputed(sample)
