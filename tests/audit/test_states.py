"""Which states are audited."""

from __future__ import annotations

from telescope.audit.states import State, choose
from tests.audit.made import made_sample


def test_first_token_largest_surprise_and_last_token_come_first() -> None:
    sample = made_sample(0, list(range(100, 120)), [0.0] * 13 + [-2.0] + [0.1] * 6)
    chosen = choose([sample], 5)
    assert chosen.tokens == [(0, 0), (0, 13), (0, 19)]
    lengths = sorted(len(state.prefix) for state in chosen.states)
    assert lengths == [0, 1, 13, 14, 19]  # before and after each; after the last is the end


def test_further_tokens_are_spread_over_the_response() -> None:
    sample = made_sample(0, list(range(17)), [1.0] + [0.0] * 16)
    tokens = [token for _, token in choose([sample], 9).tokens]
    assert tokens == [0, 16, 8, 4, 12]


def test_a_short_response_is_audited_whole() -> None:
    sample = made_sample(0, [5, 6, 7], [0.0, 1.0, 0.0])
    chosen = choose([sample], 256)
    assert sorted(token for _, token in chosen.tokens) == [0, 1, 2]
    assert set(chosen.states) == {State(0, ()), State(0, (5,)), State(0, (5, 6))}


def test_responses_that_begin_alike_share_states() -> None:
    samples = [made_sample(0, [5, 6], [0, 0]), made_sample(1, [5, 7], [0, 0])]
    assert len(choose(samples, 256).states) == 2  # nothing written, and [5]
    other = [samples[0], made_sample(1, [5, 7], [0, 0], prompt=1)]
    assert len(choose(other, 256).states) == 4


def test_the_limit_holds_and_responses_come_from_the_whole_step() -> None:
    samples = [
        made_sample(i, [10 * i + k for k in range(9)], [0.0] * 9, prompt=i) for i in range(64)
    ]
    chosen = choose(samples, 32)
    assert len(chosen.states) <= 32
    assert sorted({row for row, _ in chosen.tokens}) == [0, 16, 32, 48]


def test_as_many_states_are_chosen_as_the_limit_allows() -> None:
    """Seven states fit twice into 14, though the longest of eight responses has eight tokens."""
    samples = [
        made_sample(i, [10 * i + k for k in range(8 if i == 7 else 7)], [0.0] * 8, prompt=i)
        for i in range(8)
    ]
    assert len(choose(samples, 14).states) == 14


def test_an_empty_response_has_no_state() -> None:
    chosen = choose([made_sample(0, [], []), made_sample(1, [4], [0.5])], 16)
    assert chosen.tokens == [(1, 0)]
