"""Typed numbers are compared within the digits that were typed."""

import json
import random

import pytest

from telescope.explain.arithmetic import fill
from telescope.explain.numbers import from_numbers, read_numbers
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


@pytest.mark.parametrize(("given", "mark"), [("0.62", "≈"), ("0.6211", "≈"), ("0.63", "✗")])
def test_the_last_typed_digit_decides(tmp_path, given, mark):
    text = f"rewards = {REWARDS}\nvalues = {VALUES}\nadvantages = [{given}, 0, 0, 0, 0, 0]"
    assert marks(read(tmp_path, text))["advantage"][0] == mark


def test_an_example_with_few_digits_is_exact(tmp_path):
    """With V = 0.3 and 0.4, a δ of 0.2 in place of 0.1 is an error, not rounding."""
    text = "rewards = [0, 0, 1]\nvalues = [0.3, 0.4, 0.6]\ndeltas = [0.2, 0.2, 0.4]"
    assert marks(read(tmp_path, text))["delta"] == ["✗", "✓", "✓"]


@pytest.mark.parametrize("digits", [2, 3, 4, 5])
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
def test_a_table_in_which_every_number_is_rounded_is_right(tmp_path, digits, lam):
    """Rounded inputs count too; trailing zeros are dropped, as programs print them."""
    chance = random.Random(digits)
    rewards = [0.0] * 19 + [1.0]
    values = [round(chance.random(), 9) for _ in rewards]
    exact = from_numbers({"rewards": rewards, "values": values, "lam": lam})
    table: dict = {"lam": lam}
    for name, column in fill(exact).columns.items():
        keep = 9 if digits == 2 and name == "values" else digits
        table[name] = [round(x, keep) for x in column]
    found = marks(read(tmp_path, json.dumps(table), "numbers.json"))
    assert {mark for row in found.values() for mark in row} <= {"✓", "≈"}
    table["returns"][7] += 0.05
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
