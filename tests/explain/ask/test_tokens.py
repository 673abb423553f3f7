from __future__ import annotations

import pytest

from telescope.explain.ask.tokens import foreign, pieces, stem, words


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        ("V_t", "价值", "=value"),
        ("values", "V(s_t)", "=value"),
        ("A_t", "优势", "=advantage"),
        ("advantages", "优势函数", "=advantage"),
        ("r_0", "奖励", "=reward"),
        ("TD error", "时序差分", "=delta"),
        ("δ", "TD 误差", "=delta"),
        ("λ", "lambda", "=lam"),
        ("白化", "normalize", "=whiten"),
        ("自举", "bootstrapping", "=bootstrap"),
        ("monte carlo", "蒙特卡洛", "=mc"),
        ("截断", "truncated", "=truncated"),
        ("R_t =", "回报", "=return"),
    ],
)
def test_symbols_chinese_and_english_are_one_concept(one: str, other: str, shared: str) -> None:
    assert shared in words(one)
    assert shared in words(other)


def test_an_identifier_is_kept_whole_and_split() -> None:
    found = words("compute_gae_advantage_return")
    assert {"compute_gae_advantage_return", "=gae", "=advantage", "=return"} <= set(found)


def test_a_setting_with_its_number_is_a_token() -> None:
    assert "lam=1" in words("λ=1 呢")
    assert "lam=1" in words("lambda is 1.0")
    assert "gamma=0.9" in words("γ 取 0.9")


def test_an_article_is_not_an_advantage() -> None:
    assert "=advantage" not in words("A token is a word")


def test_endings_do_not_matter() -> None:
    assert stem("values") == stem("value")
    assert stem("clipped") == stem("clipping") == stem("clip")


def test_a_typo_keeps_most_pieces() -> None:
    shared = set(pieces("advantage")) & set(pieces("advantge"))
    assert len(shared) >= 5


def test_names_of_other_things_are_found() -> None:
    assert foreign("what is the DPO loss") == {"dpo"}
    assert foreign("今天天气怎么样") == {"天气"}
    assert not foreign("why is the KL negative")
