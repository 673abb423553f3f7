"""Advantages pasted from verl are whitened already: they are recognised, and not whitened again."""

import json
import random

import pytest

from telescope.explain.already_whitened import note
from telescope.explain.arithmetic import fill, moments
from telescope.explain.numbers import read_numbers
from telescope.explain.terminal import render
from telescope.explain.trace import Tracer

CHANCE = random.Random(3)
VALUES = [[CHANCE.random() for _ in range(length)] for length in (6, 4, 5)]
RETURNS = [[v + CHANCE.gauss(0.1, 0.2) for v in row] for row in VALUES]
RAW = [[r - v for r, v in zip(*rows, strict=True)] for rows in zip(RETURNS, VALUES, strict=True)]
MEAN, STD = moments([a for row in RAW for a in row])
WHITENED = [[(a - MEAN) / STD for a in row] for row in RAW]


def rounded(rows, digits=4):
    return [[round(x, digits) for x in row] for row in rows]


def read(tmp_path, data):
    file = tmp_path / "numbers.json"
    file.write_text(json.dumps(data))
    return read_numbers(file)


def all_right(sample) -> bool:
    """Every recorded number is ✓, in the table and in the terms."""
    tracer = Tracer(sample)
    oks = [trace.ok for t in range(len(sample)) for trace in tracer.traces(t)]
    verdicts = [ok for t in range(len(sample)) for ok in tracer.verdicts(t).values()]
    return all(verdicts) and False not in oks


def test_with_values_and_returns_the_raw_advantages_are_found(tmp_path):
    batch = read(
        tmp_path,
        {"advantages": rounded(WHITENED), "values": rounded(VALUES), "returns": rounded(RETURNS)},
    )
    for sample, raw, whitened in zip(batch, RAW, rounded(WHITENED), strict=True):
        assert sample.already_whitened
        assert all_right(sample)
        assert sample.columns["whitened"] == whitened
        assert fill(sample).columns["advantages"] == pytest.approx(raw, abs=1e-4)
        assert (sample.whiten_mean, sample.whiten_std) == pytest.approx((MEAN, STD), abs=1e-4)


def test_one_response_of_a_batch_is_recognised_by_its_returns(tmp_path):
    """Its own mean and σ are not 0 and 1; those of the batch follow from R − V."""
    data = {"advantages": rounded(WHITENED)[0], "values": rounded(VALUES)[0]}
    (sample,) = read(tmp_path, data | {"returns": rounded(RETURNS)[0]})
    assert sample.already_whitened
    assert all_right(sample)
    assert (sample.whiten_mean, sample.whiten_std) == pytest.approx((MEAN, STD), abs=1e-3)


def test_alone_they_are_recognised_by_mean_and_spread(tmp_path):
    batch = read(tmp_path, {"advantages": rounded(WHITENED)})
    for sample, whitened in zip(batch, rounded(WHITENED), strict=True):
        assert sample.already_whitened
        assert fill(sample).columns["whitened"] == whitened
        assert "advantages" not in fill(sample).columns


def test_one_wrong_return_does_not_hide_it(tmp_path):
    returns = rounded(RETURNS)
    returns[1][2] += 0.3
    batch = read(
        tmp_path,
        {"advantages": rounded(WHITENED), "values": rounded(VALUES), "returns": returns},
    )
    assert all(sample.already_whitened for sample in batch)


@pytest.mark.parametrize(
    "data",
    [
        {"advantages": RAW},
        {"advantages": rounded(RAW), "values": rounded(VALUES), "returns": rounded(RETURNS)},
        {"advantages": WHITENED, "whiten": False},
        {"whitened": WHITENED},
        {"advantages": [[1.0, -1.0], [0.5]]},
    ],
)
def test_other_advantages_stay_as_they_are(data, tmp_path):
    for sample in read(tmp_path, data):
        assert not sample.already_whitened
        assert note(sample, "en") == note(sample, "zh") == ""
        assert all_right(sample)


def test_one_wrong_raw_advantage_is_still_a_wrong_raw_advantage(tmp_path):
    wrong = rounded(RAW)
    wrong[0][2] += 0.5
    data = {"advantages": wrong, "values": rounded(VALUES), "returns": rounded(RETURNS)}
    first, *_ = read(tmp_path, data)
    assert not first.already_whitened
    assert not all_right(first)


def test_a_reader_who_turned_whitening_off_is_not_told_to(tmp_path):
    data = {"advantages": rounded(WHITENED), "values": rounded(VALUES), "whiten": False}
    batch = read(tmp_path, data | {"returns": rounded(RETURNS)})
    for sample in batch:
        assert all_right(sample)
        assert "advantages" not in sample.columns
        assert "whitened" in sample.columns
        assert note(sample, "en") == note(sample, "zh") == ""


@pytest.mark.parametrize(
    ("lang", "known", "unknown"),
    [("en", "come from the other columns", "were not given"), ("zh", "由其他列得出", "没有给出")],
)
def test_the_reader_is_told_and_the_remedy_is_stated(lang, known, unknown, tmp_path):
    with_returns, *_ = read(
        tmp_path, {"advantages": WHITENED, "values": VALUES, "returns": RETURNS}
    )
    alone, *_ = read(tmp_path, {"advantages": WHITENED})
    for sample, said in ((with_returns, known), (alone, unknown)):
        text = note(sample, lang)
        assert said in text
        assert "whiten = false" in text
        assert "whitened" in text


@pytest.mark.parametrize("lang", ["zh", "en"])
@pytest.mark.parametrize("with_returns", [True, False])
def test_the_first_screen_has_a_term(tmp_path, lang, with_returns):
    """Eight tokens, so that there is little room: the warning is short, and Â is a term."""
    advantages = [1.2033, 0.3197, 0.7847, -0.6569, -0.3313, -0.9824, 1.1103, -1.4474]
    data = {"values": [0.31, 0.52, 0.41, 0.73, 0.66, 0.8, 0.35, 0.9], "advantages": advantages}
    if with_returns:
        data["returns"] = [0.98, 1.0, 0.99, 1.0, 1.0, 1.0, 1.0, 1.0]
    (sample,) = read(tmp_path, data | {"lam": 1.0})
    text = render(sample, lang=lang, width=80, extent="first", color=False)
    term = "Â₀ = (A₀ − μ)/σ = (0.67 − 0.4113)/0.215 = 1.203" if with_returns else "Â₀ = 1.203"
    assert term in text
    assert "whiten = false" in text
    assert len(text.splitlines()) <= 24
    largest = "largest |A|" if lang == "en" else "|A| 最大"
    assert (largest in text) == with_returns
    assert (largest.replace("A", "Â") in text) != with_returns
