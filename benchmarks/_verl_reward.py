"""verl's reward for GSM8K: the scores and weights of recipes/gsm8k.toml."""

import tomllib
from pathlib import Path
from typing import Any

from recipes import gsm8k

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "gsm8k.toml"
WEIGHTS = tomllib.loads(RECIPE.read_text("utf-8"))["reward"]["weights"]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any
) -> dict[str, float]:
    """The weighted score; verl reports `acc` of a validation."""
    parts = {
        "gsm8k": gsm8k.gsm8k([solution_str], [ground_truth])[0],
        "form": gsm8k.form([solution_str])[0],
        "lenient": gsm8k.lenient([solution_str], [ground_truth])[0],
    }
    score = sum(WEIGHTS[name] * part for name, part in parts.items())
    return {
        "score": score,
        "acc": parts["gsm8k"],
        "form": parts["form"],
        "lenient": parts["lenient"],
    }
