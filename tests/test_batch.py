from __future__ import annotations

import pytest
import torch

from telescope.batch import COLUMNS, TokenBatch, column_table
from telescope.errors import TelescopeError
from tests import ROOT
from tests.fakes import hand_batch


def test_a_missing_column_names_the_stage_that_makes_it() -> None:
    with pytest.raises(
        TelescopeError, match=r"batch has no `values`: call critic\.compute_values\(batch\) first"
    ):
        hand_batch([[1, 1]])["values"]


def test_an_unknown_column_is_refused_on_reading_and_on_writing() -> None:
    batch = hand_batch([[1, 1]])
    with pytest.raises(TelescopeError, match="no column `valuez`"):
        batch["valuez"]
    with pytest.raises(TelescopeError, match="no column `valuez`"):
        batch.with_columns(valuez=torch.zeros(1, 2))


def test_a_column_of_the_wrong_shape_is_refused() -> None:
    with pytest.raises(
        TelescopeError,
        match=r"`values` has shape \[1, 3\]; it is state-anchored, so this batch needs \[1, 2\]",
    ):
        hand_batch([[1, 1]]).with_columns(values=torch.zeros(1, 3))


@pytest.mark.parametrize("garbage", [7.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    "name",
    [
        n
        for n, c in COLUMNS.items()
        if c.dtype == "float" and c.anchor != "row" and n != "token_level_scores"
    ],
)
def test_every_float_column_is_exactly_zero_off_the_mask(name: str, garbage: float) -> None:
    batch = hand_batch([[1, 0, 1, 0]]).with_columns(
        **{name: torch.tensor([[1.0, garbage, 2.0, garbage]])}
    )
    assert batch[name].tolist() == [[1.0, 0.0, 2.0, 0.0]]


def test_a_score_on_a_token_the_policy_did_not_write_is_an_error() -> None:
    with pytest.raises(
        TelescopeError, match=r"row 0: a score of 0\.5 on token 2, which the policy did not write"
    ):
        hand_batch([[1, 1, 0]]).with_columns(token_level_scores=torch.tensor([[0.0, 1.0, 0.5]]))


def test_nan_in_a_padded_score_changes_nothing() -> None:
    batch = hand_batch([[1, 1, 0]]).with_columns(
        token_level_scores=torch.tensor([[0.0, 1.0, float("nan")]])
    )
    assert batch["token_level_scores"].tolist() == [[0.0, 1.0, 0.0]]


def test_a_batch_is_immutable() -> None:
    before = hand_batch([[1, 1]])
    values = torch.tensor([[1.0, 2.0]])
    after = before.with_columns(values=values)
    assert "values" not in before
    assert "values" in after
    values.zero_()
    assert after["values"].tolist() == [[1.0, 2.0]]


def test_picked_rows_keep_all_their_columns_and_lose_only_shared_padding() -> None:
    batch = hand_batch(
        [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]], values=torch.arange(12.0).reshape(3, 4) + 1
    )
    picked = batch.rows(torch.tensor([2, 1]))
    assert picked["values"].tolist() == [[9.0, 0.0], [5.0, 6.0]]
    assert picked["responses"].tolist() == batch["responses"][[2, 1], :2].tolist()
    assert picked["input_ids"].shape == (2, 3 + 2)
    assert picked.info == (batch.info[2], batch.info[1])


def test_a_batch_without_a_mask_is_refused() -> None:
    with pytest.raises(TelescopeError, match="response_mask"):
        TokenBatch({})


def test_every_column_is_explained_in_both_languages() -> None:
    for column in COLUMNS.values():
        assert column.en
        assert any("\u4e00" <= c <= "\u9fff" for c in column.zh)
        assert "(" in column.maker


def test_the_documented_columns_are_the_columns() -> None:
    text = (ROOT / "docs" / "columns.md").read_text("utf-8")
    assert column_table() in text


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        (
            "values",
            torch.int64,
            r"`values` is torch.int64; it is a real number .*values\.float\(\)",
        ),
        ("responses", torch.float32, r"`responses` is torch.float32; it is token ids.*\.long\(\)"),
        ("responses", torch.bool, r"`responses` is torch.bool; it is token ids.*\.long\(\)"),
        ("old_log_probs", torch.bool, r"`old_log_probs` is torch.bool"),
        ("sample", torch.float64, r"`sample` is torch.float64; it is an integer"),
        ("truncated", torch.int64, r"`truncated` is torch.int64; it is true or false"),
    ],
)
def test_a_column_of_the_wrong_type_is_refused(name: str, dtype: torch.dtype, message: str) -> None:
    batch = hand_batch([[1, 1]])
    width = [1] if COLUMNS[name].anchor == "row" else [1, 2]
    with pytest.raises(TelescopeError, match=message):
        batch.with_columns(**{name: torch.ones(width, dtype=dtype)})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_every_float_type_may_hold_values(dtype: torch.dtype) -> None:
    assert hand_batch([[1, 1]], values=torch.ones(1, 2, dtype=dtype))["values"].dtype == dtype


@pytest.mark.parametrize("name", ["input_ids", "attention_mask", "position_ids"])
@pytest.mark.parametrize("shape", [[2, 4], [2, 6], [1, 5], [2, 5, 1]])
def test_whole_rows_are_as_wide_as_prompt_and_response_together(
    name: str, shape: list[int]
) -> None:
    batch = hand_batch([[1, 1], [1, 0]], prompt=3)
    batch.with_columns(**{name: torch.ones(2, 5, dtype=torch.long)})
    with pytest.raises(TelescopeError, match=rf"`{name}` has shape .* (needs|so give) \[2, "):
        batch.with_columns(**{name: torch.ones(shape, dtype=torch.long)})


def test_without_prompts_whole_rows_are_equally_wide() -> None:
    columns = {
        "response_mask": torch.ones(1, 2, dtype=torch.long),
        "input_ids": torch.ones(1, 5, dtype=torch.long),
    }
    TokenBatch(columns)
    with pytest.raises(TelescopeError, match=r"`attention_mask` has shape \[1, 4\]; `input_ids`"):
        TokenBatch({**columns, "attention_mask": torch.ones(1, 4, dtype=torch.long)})
    with pytest.raises(TelescopeError, match=r"prompts have 4 tokens and responses 2"):
        TokenBatch(columns).with_columns(prompts=torch.ones(1, 4, dtype=torch.long))


def test_the_last_valid_token_of_each_row_is_known_on_the_host() -> None:
    # in the second row a tool wrote the last two tokens; the third has no action
    batch = hand_batch([[1, 1, 1], [1, 0, 0], [0, 0, 0]])
    assert batch.host("last") == [2, 0, -1]
    assert batch.rows(torch.tensor([2, 0])).host("last") == [-1, 2]
    assert batch.blank().host("last") == [-1]
    blank = batch.blank()
    number = blank.host("sample")
    masked = blank.only(torch.ones(1, 3).bool())
    assert masked.host("last") == [-1]
    assert masked.host("sample") == number
    without_last = batch.only(torch.tensor([[1, 1, 0], [1, 1, 1], [1, 1, 1]]).bool())
    assert without_last.host("last") == [1, 0, -1]
    assert batch.host("last") == [2, 0, -1]


def test_what_the_host_knows_of_a_batch_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = hand_batch([[1, 1, 0], [1, 1, 1]])
    batch.host("prompt")
    monkeypatch.setattr(torch.Tensor, "tolist", None)  # a second copy would fail
    monkeypatch.setattr(torch.Tensor, "cpu", None)
    later = batch.with_columns(values=torch.zeros(2, 3))
    assert later.host("response") == [2, 3]
    assert later.host("last") == [1, 2]
    assert [len(ids) for ids in later.prompt_ids()] == [3, 3]


def test_prompt_ids_are_copies() -> None:
    batch = hand_batch([[1, 1]])
    batch.prompt_ids()[0].clear()
    assert len(batch.prompt_ids()[0]) == 3
