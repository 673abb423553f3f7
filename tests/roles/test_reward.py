from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope.batch import Response, Scores
from telescope.build import build_reward
from telescope.errors import TelescopeError
from telescope.models.load import load_reward_model, load_tokenizer, quiet
from telescope.roles.functions import load_function
from telescope.roles.reward import Reward
from telescope.roles.reward_model import RewardModel
from tests.fakes import EOS, hand_batch


def scores(function, mask, **kwargs):
    return (
        Reward({"f": function})
        .compute_reward(hand_batch(mask, **kwargs))["token_level_scores"]
        .tolist()
    )


def totals(batch):
    return [scores.total for scores in batch.scores]


def test_a_score_lands_on_the_last_token_the_policy_wrote() -> None:
    assert scores(lambda completions: [1.0, 2.0, 3.0], [[1, 1, 1], [1, 1, 0], [1, 0, 0]]) == [
        [0, 0, 1],
        [0, 2, 0],
        [3, 0, 0],
    ]


def test_with_trailing_tool_tokens_the_score_lands_before_them() -> None:
    assert scores(lambda completions: [1.0], [[1, 1, 0, 0]], attended=[[1, 1, 1, 0]]) == [
        [0, 1, 0, 0]
    ]


def test_an_empty_response_gets_no_credit_and_breaks_nothing() -> None:
    batch = Reward({"f": lambda completions: [1.0, 1.0]}).compute_reward(
        hand_batch([[0, 0], [1, 0]])
    )
    assert batch["token_level_scores"].tolist() == [[0, 0], [1, 0]]
    assert totals(batch) == [1.0, 1.0]


def test_dense_scores_go_on_their_own_tokens() -> None:
    assert scores(
        lambda response_ids: [[0.5] * len(r) for r in response_ids], [[1, 1, 0], [1, 1, 1]]
    ) == [[0.5, 0.5, 0], [0.5] * 3]


def test_a_dense_score_on_a_tool_token_is_refused() -> None:
    with pytest.raises(TelescopeError, match="which the policy did not write"):
        scores(lambda response_ids: [[1.0, 1.0, 1.0]], [[1, 0, 1]], attended=[[1, 1, 1]])


def test_parts_are_weighted_and_reported_by_name() -> None:
    reward = Reward(
        {"a": lambda completions: [1.0], "b": lambda completions: [[0.25, 0.75]]}, {"b": 2.0}
    )
    batch = reward.compute_reward(hand_batch([[1, 1]]))
    assert batch["token_level_scores"].tolist() == [[0.5, 1.0 + 1.5]]
    assert batch.scores == [Scores(1.0 + 2.0, {"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 2.0})]


def test_data_columns_reach_the_function_and_unwanted_ones_do_not() -> None:
    batch = hand_batch([[1], [1]]).with_info(data=[{"answer": 3, "other": "x"}, {"answer": 4}])

    def picky(prompts, completions, answer):
        return [float(a) for a in answer]

    def greedy(prompts, completions, **columns):
        assert {"answer", "other", "response_ids"} <= set(columns)
        return [0.0, 0.0]

    out = Reward({"picky": picky, "greedy": greedy}).compute_reward(batch)
    assert totals(out) == [3.0, 4.0]


def test_functions_load_from_a_module_and_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def length(completions, **_):\n    return [len(c) for c in completions]\n"
    )
    name, function = load_function(f"{tmp_path}/mine.py:length")
    assert (name, function(["ab"])) == ("length", [2])
    assert load_function("telescope.data.arithmetic:verdict")[0] == "verdict"


@pytest.fixture(scope="module")
def reward_model_dir(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForSequenceClassification

    folder = tmp_path_factory.mktemp("rm") / "rm"
    with quiet():
        torch.manual_seed(0)
        model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
        torch.nn.init.normal_(model.score.weight)
        model.save_pretrained(folder)
        load_tokenizer(str(tiny_model)).save_pretrained(folder)
    return folder


def test_a_reward_model_scores_prompt_and_response_at_their_last_token(
    reward_model_dir: Path,
) -> None:
    """Also where that token is EOS and EOS is the pad token, which HF's own pooling would skip."""
    model, tokenizer = (
        load_reward_model(str(reward_model_dir), torch.device("cpu")),
        load_tokenizer(str(reward_model_dir)),
    )
    tokenizer.pad_token = tokenizer.eos_token
    prompt, response = [3, 4, 5], [6, 7, EOS]
    hidden = model.model(input_ids=torch.tensor([prompt + response])).last_hidden_state[0, -1]
    expected = float(model.score(hidden))
    function = RewardModel(model, tokenizer, tokenizer)
    got = function(
        prompts=["", ""],
        completions=["", ""],
        prompt_ids=[prompt, [3]],
        response_ids=[response, [9]],
    )
    assert got[0] == pytest.approx(expected, abs=1e-5)


def test_a_reward_model_with_other_tokens_reads_the_text(
    reward_model_dir: Path, tiny_model: Path
) -> None:
    model, tokenizer = (
        load_reward_model(str(reward_model_dir), torch.device("cpu")),
        load_tokenizer(str(reward_model_dir)),
    )
    foreign = load_tokenizer(str(tiny_model))
    foreign.add_tokens(["foreign"])
    function = RewardModel(model, tokenizer, foreign)
    text = function(
        prompts=["请问1+1=2？"], completions=["是的"], prompt_ids=[[0]], response_ids=[[0]]
    )
    ids = RewardModel(model, tokenizer, tokenizer)
    same = ids(
        prompts=[""],
        completions=[""],
        prompt_ids=[tokenizer("请问1+1=2？").input_ids],
        response_ids=[tokenizer("是的").input_ids],
    )
    assert text == pytest.approx(same)


def test_a_reward_model_and_a_function_add_up(
    make_config, reward_model_dir: Path, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def one(completions):\n    return [1.0] * len(completions)\n"
    )
    config = make_config(
        ("reward.model", str(reward_model_dir)),
        ("reward.functions", f"{tmp_path}/mine.py:one"),
        ("reward.weights", "{model = 0.5}"),
    )
    reward = build_reward(config, load_tokenizer(str(tiny_model)), torch.device("cpu"))
    batch = reward.compute_reward(hand_batch([[1, 1]]))
    (scores,) = batch.scores
    assert scores.total == pytest.approx(1.0 + 0.5 * scores.parts["model"])


def test_a_data_column_called_response_reaches_the_function_beside_the_real_one() -> None:
    batch = hand_batch([[1]]).with_info(
        data=[{"response": "from the data", "completions": "not this one"}]
    )
    seen = {}

    def look(completions, **columns):
        seen.update(columns, completions=completions)
        return [0.0]

    Reward({"look": look}).compute_reward(batch)
    assert seen["response"] == ["from the data"]
    assert seen["completions"] == ["r"]


def test_an_encoder_reward_model_scores_a_row_alike_alone_and_in_company(
    tmp_path: Path, tiny_model: Path
) -> None:
    """Padded rows would change what its pooler reads."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=26,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            num_labels=1,
        )
    ).eval()
    tokenizer = load_tokenizer(str(tiny_model))
    function = RewardModel(model, tokenizer, tokenizer)
    alone = function(prompts=[""], completions=[""], prompt_ids=[[5]], response_ids=[[6]])
    together = function(
        prompts=[""] * 2,
        completions=[""] * 2,
        prompt_ids=[[5], [7, 8, 9]],
        response_ids=[[6], [3, 4]],
    )
    assert together[0] == pytest.approx(alone[0], abs=1e-6)


def test_a_reward_model_without_weights_for_its_head_is_refused(tiny_model: Path) -> None:
    with pytest.raises(
        TelescopeError, match=r"no weights for score\.weight, so it would start at random"
    ):
        load_reward_model(str(tiny_model), torch.device("cpu"))


def test_a_part_may_not_take_the_name_of_another_metric() -> None:
    with pytest.raises(TelescopeError, match="cannot be called 'kl'"):
        Reward({"kl": lambda completions: [0.0]})


def test_the_greedy_response_is_scored_like_the_sampled_one() -> None:
    batch = hand_batch([[1, 1], [1, 0]]).with_info(
        greedy=[Response("xyz", [3, 4, 5]), Response("", [])]
    )
    dense = lambda response_ids: [[0.5] * len(ids) for ids in response_ids]  # noqa: E731
    scored = Reward(
        {"length": lambda completions: [len(c) for c in completions], "dense": dense},
        {"length": 2.0},
    ).compute_reward(batch)
    assert scored["greedy_score"].tolist() == [2 * 3 + 1.5, 0.0]
    assert [scores.parts["length"] for scores in scored.scores] == [
        1,
        1,
    ]  # of the sampled responses, "r" each


def test_attention_goes_on_its_tokens_and_is_never_negative() -> None:
    def reward(attention):
        return Reward({"f": lambda completions: [1.0]}, attention=attention).compute_reward(
            hand_batch([[1, 1, 0]])
        )

    assert reward(lambda response_ids: [[0.2, 0.6]])["attention"][0].tolist() == pytest.approx(
        [0.2, 0.6, 0.0]
    )
    with pytest.raises(TelescopeError, match="weight below 0"):
        reward(lambda response_ids: [[-0.2, 0.6]])


@pytest.mark.parametrize("end", [SystemExit, SystemExit(0), GeneratorExit])
def test_a_function_that_ends_the_process_is_an_error(end) -> None:
    def leaves(completions):
        raise end

    with pytest.raises(TelescopeError, match=r"'leaves' raised (SystemExit|GeneratorExit)"):
        Reward({"leaves": leaves}).score(hand_batch([[1]]))


def test_a_file_that_ends_the_process_when_it_is_imported_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text("import sys; sys.exit()")
    with pytest.raises(TelescopeError, match="cannot be loaded: SystemExit"):
        load_function(f"{tmp_path / 'leaves.py'}:f")


def test_what_a_function_does_to_its_arguments_reaches_nobody_else() -> None:
    batch = hand_batch([[1, 1], [1, 0]])
    data = [{"answer": {"parts": [1]}}, {"answer": {"parts": [2]}}]
    batch = batch.with_info(data=data)
    before = [list(row.response.ids) for row in batch.info]

    def spoils(prompts, completions, prompt_ids, response_ids, answer):
        for column in (prompts, completions, prompt_ids):
            column.clear()
        for ids, own in zip(response_ids, answer, strict=True):
            ids.append(0)
            own["parts"].append("mine")
        return [1.0, 1.0]

    seen = []

    def looks(completions, response_ids, answer):
        seen.append([len(completions), response_ids, answer])
        return [0.0, 0.0]

    scored = Reward({"spoils": spoils, "looks": looks}).score(batch)
    assert seen == [[2, before, [{"parts": [1]}, {"parts": [2]}]]]
    assert [row.response.ids for row in scored.info] == before
    assert [row.data for row in scored.info] == [
        {"answer": {"parts": [1]}},
        {"answer": {"parts": [2]}},
    ]
