from __future__ import annotations

import pytest

from telescope import Trainer
from telescope.errors import TelescopeError
from telescope.live import explain_pair


def test_the_four_roles_show_their_output_for_a_pair(make_config) -> None:
    config = make_config(("steps", "1"))
    Trainer(config).fit()
    sample, outputs = explain_pair("请问1+1=2？", "是的，等于2！", str(config.run_dir))
    shapes = {output.name: output.shape for output in outputs}
    assert shapes["input_ids"] == shapes["attention_mask"] == [1, 14]
    assert shapes["responses"] == shapes["old_log_probs"] == shapes["values"] == shapes["ref_log_prob"] == [1, 7]
    assert [b.decode() for b in sample.token_bytes] == ["是", "的", "，", "等于", "2", "！", "<eos>"]
    assert sample.columns["token_level_scores"] == [0, 0, 0, 0, 0, 0, 1]
    assert sample.parts == {"verdict": 1.0, "sum": 1.0}
    assert sample.actor_updates[0].ratio == [1.0] * 7
    assert [o.maker for o in outputs if o.name in ("values", "ref_log_prob", "token_level_scores")] == [
        "critic.compute_values(batch)",
        "reference.compute_log_prob(batch)",
        "reward.compute_reward(batch)",
    ]


def test_a_wrong_answer_scores_its_parts(make_config, tiny_model) -> None:
    sample, _ = explain_pair("你知道1+1=3吗？", "是的，等于2！", str(tiny_model))
    assert sample.parts == {"verdict": 0.0, "sum": 1.0}


def test_an_empty_response_is_refused(tiny_model) -> None:
    with pytest.raises(TelescopeError, match="the response is empty"):
        explain_pair("请问1+1=2？", "", str(tiny_model))
