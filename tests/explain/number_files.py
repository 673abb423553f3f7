"""Numbers written to a file in each format that `explain` reads."""

import csv
import io
import json

import pytest

from telescope.explain.numbers import read_numbers


def as_toml(data: dict) -> str:
    return "".join(
        f"{json.dumps(k, ensure_ascii=False)} = {json.dumps(v, ensure_ascii=False)}\n"
        for k, v in data.items()
        if k != "expected"
    )


def as_csv(data: dict) -> str:
    """One row per token; what is not a list stands in the first row."""
    data = {k: v for k, v in data.items() if k != "expected"}
    length = max(len(v) for v in data.values() if isinstance(v, list))
    text = io.StringIO()
    out = csv.writer(text)
    out.writerow(data)
    for t in range(length):
        out.writerow([v[t] if isinstance(v, list) else v if t == 0 else "" for v in data.values()])
    return text.getvalue()


FORMATS = {
    "toml": as_toml,
    "json": lambda data: json.dumps(data, ensure_ascii=False),
    "csv": as_csv,
}


def read_one(path):
    (sample,) = read_numbers(path)
    return sample


def near(numbers):
    return pytest.approx(numbers, abs=1e-6)
