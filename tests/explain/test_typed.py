"""Typed numbers are compared within the digits that were typed."""

import json
import random

import pytest

from telescope.explain.arithmetic import fill
from telescope.explain.numbers import from_numbers, read_numbers
from telescope.explain.terminal import render
from telescope.explain.trace import Tracer
from telescope.explain.typed import Typed, bound_of, typed, with_common_precision

VALUES = [0.2, 0.25, 0.3, 0.35, 0.45, 0.6]
REWARDS = [-0.01, -0.005, 0.005, -0.01, -0.02, 0.995]
ADVANTAGES = [0.621081, 0.611664, 0.596488, 0.569988, 0.50525, 0.395]


def read(tmp_path, text: str, name: str = "numbers.toml"):
    file = tmp_path / name
    file.write_text(text, "utf-8")
    (sample,) = read_numbers(file)
    return sample


def listed(parts) -> str:
    return ", ".join(map(str, parts))


def marks(sample) -> dict[str, list[str]]:
    """✓, ≈ (rounded) or ✗ of each recorded number, by name; terms and table must agree."""
    tracer = Tracer(sample)
    out: dict[str, list[str]] = {}
    for t in range(len(sample)):
        found = [trace for trace in tracer.traces(t) if trace.recorded is not None]
        for trace in found:
            mark = "≈" if trace.rounded else "✓" if trace.ok else "✗"
            out.setdefault(trace.name, []).append(mark)
        wrong = {trace.name.removesuffix("_sum") for trace in found if not trace.ok}
        verdicts = tracer.verdicts(t)
        assert wrong == {name for name, right in verdicts.items() if not right}
    return out


@pytest.mark.parametrize("form", ["toml", "json", "csv"])
def test_a_rounded_number_is_right_and_the_one_wrong_number_is_not(tmp_path, form):
    """.6211 stands for .62108; .5069 does not stand for .50525."""
    typed_advantages = [".6211", ".6117", ".5965", ".5700", ".5069", ".395"]
    columns = {"rewards": REWARDS, "values": VALUES, "A": typed_advantages}
    rows = zip(*columns.values(), strict=True)
    texts = {
        "csv": "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]),
        "toml": "\n".join(f"{name} = [{listed(column)}]" for name, column in columns.items()),
        "json": "{" + listed(f'"{name}": [{listed(x)}]' for name, x in columns.items()) + "}",
    }
    text = texts[form]
    found = marks(read(tmp_path, text, f"numbers.{form}"))
    assert found["advantage"] == ["≈", "≈", "✓", "≈", "✗", "✓"]  # .055 + .95·.57 = .5965
    assert found["advantage_sum"] == ["≈", "≈", "≈", "≈", "✗", "✓"]


@pytest.mark.parametrize(
    ("given", "mark"), [("0.62", "≈"), ("0.6211", "≈"), ("0.6216", "✗"), ("0.64", "✗")]
)
def test_the_last_typed_digit_decides(tmp_path, given, mark):
    """V has two decimals: rounded for an A with two, exact for an A with four."""
    text = f"rewards = {REWARDS}\nvalues = {VALUES}\nadvantages = [{given}, 0, 0, 0, 0, 0]"
    assert marks(read(tmp_path, text))["advantage"][0] == mark


def test_one_decimal_may_be_off_by_half_a_unit_each(tmp_path):
    """δ = 0.4 − 0.3: each of the three may be off by 0.05, so 0.2 is rounded and 0.3 is wrong."""
    text = "rewards = [0, 0, 1]\nvalues = [{}, {}, {}]\ndeltas = [{}, 0.2, 0.4]"
    assert marks(read(tmp_path, text.format(0.3, 0.4, 0.6, 0.2)))["delta"] == ["≈", "✓", "✓"]
    assert marks(read(tmp_path, text.format(0.3, 0.4, 0.6, 0.3)))["delta"] == ["✗", "✓", "✓"]
    exact = text.format("0.300", "0.400", "0.600", 0.2)
    assert marks(read(tmp_path, exact))["delta"] == ["✗", "✓", "✓"]


def test_whole_numbers_without_a_point_and_whole_rewards_are_exact(tmp_path):
    """δ = V' − V and r − V."""
    text = "rewards = [0.0, 1.0]\nvalues = [0, {}]\ndeltas = [0.9, 0.0]"
    assert marks(read(tmp_path, text.format("1")))["delta"] == ["✗", "✓"]
    assert marks(read(tmp_path, text.format("1.0")))["delta"] == ["≈", "✓"]


TWO_DECIMALS = """
rewards = [-0.03, 0.0, -0.03, 0.99]
values = [0.31, 0.51, 0.42, 0.7]
deltas = [0.16, -0.08, 0.25, 0.29]
advantages = [0.56, 0.42, 0.53, 0.29]
returns = [0.88, 1.03, 0.95, 0.99]
"""


def test_the_one_error_among_numbers_with_two_decimals_is_found(tmp_path):
    """R[1] is 0.42 + 0.51 = 0.93; δ[0] = 0.17 and 0.16 differ only by rounding."""
    found = marks(read(tmp_path, TWO_DECIMALS))
    assert found["return"] == ["≈", "✗", "✓", "✓"]
    others = [mark for name, row in found.items() if name != "return" for mark in row]
    assert found["delta"][0] == "≈"
    assert "✗" not in others


def test_numbers_that_agree_only_up_to_rounding_are_counted(tmp_path):
    sample = read(tmp_path, TWO_DECIMALS)
    assert "12 recorded numbers recomputed: 11 ✓ (6 rounded) 1 ✗" in render(sample, lang="en")
    assert "核对了 12 个记录值：11 ✓（其中 6 个已舍入） 1 ✗" in render(sample, lang="zh")


def test_many_rounded_numbers_do_not_hide_one_wrong_advantage(tmp_path):
    """With λ = 1, 60 δ may be off by 0.3 together, but V cancels and the next A is there too."""
    chance = random.Random(1)
    rewards = [0.0] * 59 + [1.0]
    exact = {"rewards": rewards, "values": [chance.random() for _ in rewards], "lam": 1.0}
    table: dict = {"lam": 1.0}
    for name, column in fill(from_numbers(exact)).columns.items():
        table[name] = [round(x, 2) for x in column]
    del table["returns"], table["whitened"]
    table["advantages"][7] += 0.1
    found = marks(read(tmp_path, json.dumps(table), "numbers.json"))
    assert [t for t, mark in enumerate(found["advantage"]) if mark == "✗"] == [7]


@pytest.mark.parametrize(("digits", "error"), [(1, 0.3), (2, 0.1), (3, 0.05), (4, 0.05), (5, 0.05)])
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_a_table_in_which_every_number_is_rounded_is_right(tmp_path, digits, error, lam):
    """Rounded inputs count too; trailing zeros are dropped, as programs print them."""
    chance = random.Random(digits)
    rewards = [0.0] * 19 + [1.0]
    values = [round(chance.random(), 9) for _ in rewards]
    exact = from_numbers({"rewards": rewards, "values": values, "lam": lam})
    table: dict = {"lam": lam}
    for name, column in fill(exact).columns.items():
        table[name] = [round(x, digits) for x in column]
    found = marks(read(tmp_path, json.dumps(table), "numbers.json"))
    assert {mark for row in found.values() for mark in row} <= {"✓", "≈"}
    table["returns"][7] = round(table["returns"][7] + error, digits)
    found = marks(read(tmp_path, json.dumps(table), "numbers.json"))
    wrong = [(name, t) for name, row in found.items() for t, mark in enumerate(row) if mark == "✗"]
    assert wrong == [("return", 7)]


def test_numbers_that_were_not_typed_keep_the_old_tolerance():
    columns = {"rewards": REWARDS, "values": VALUES, "lam": 0.95}
    right = from_numbers({**columns, "advantages": ADVANTAGES})
    assert set(marks(right)["advantage"]) == {"✓"}
    rounded = from_numbers({**columns, "advantages": [0.6211, *ADVANTAGES[1:]]})
    assert marks(rounded)["advantage"][0] == "✗"


def test_an_error_adds_up_cancels_and_is_scaled():
    x, y = with_common_precision([typed("0.1234"), typed("0.5")])
    assert (bound_of(x), bound_of(y)) == (5e-5, 5e-5)
    assert bound_of(x + y) == bound_of(x - y) == pytest.approx(1e-4)
    assert bound_of(x - x) == 0
    assert bound_of(1.0 - 0.5 * x) == pytest.approx(2.5e-5)
    assert bound_of((x + y) - y) == pytest.approx(5e-5)
    assert bound_of(x / 2) == pytest.approx(2.5e-5)
    assert bound_of(x * y) == pytest.approx(5e-5 * (0.1234 + 0.5))


@pytest.mark.parametrize(
    ("text", "half_unit"),
    [("0.62108", 5e-6), ("1.50", 5e-3), ("1e-5", 5e-6), ("3", 0), ("1e5", 0), ("nan", 0)],
)
def test_half_a_unit_of_the_last_digit(text, half_unit):
    assert typed(text).half_unit == pytest.approx(half_unit)
    assert isinstance(typed(text), Typed)
