"""The lines that compute a quantity are found where they are, without importing torch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import telescope
from telescope.algorithms.definitions import ESTIMATORS, POLICY_LOSSES
from telescope.batch import COLUMNS
from telescope.commands import main
from telescope.explain.code import NAMES, code_of
from telescope.explain.example import BATCH
from telescope.explain.settings import Settings
from telescope.explain.terminal import render
from telescope.explain.trace import Tracer
from tests.explain.samples import demo, trained

ROOT = Path(telescope.__file__).parents[1]


@pytest.mark.parametrize("term", NAMES)
def test_file_line_and_lines_are_those_of_the_installed_package(term: str) -> None:
    found = code_of(term, Settings.of())
    assert found
    for code in found:
        source = (ROOT / code.file).read_text("utf-8").splitlines()
        assert source[code.line - 1].startswith(f"def {code.function}(")
        assert code.lines[0] == source[code.line - 1]
        assert not any('"""' in line for line in code.lines[:4])  # without the docstring
        assert all(line in source for line in code.lines)


def test_every_term_of_every_token_has_code() -> None:
    samples = [demo(), *BATCH, *trained(2)]
    for sample in samples:
        for t in sample.written:
            for trace in Tracer(sample).traces(t):
                assert code_of(trace.name, sample.settings), trace.name


@pytest.mark.parametrize("name", [*ESTIMATORS])
def test_every_estimator_has_code(name: str) -> None:
    codes = code_of("advantage", Settings.of(estimator=name))
    assert codes
    assert all(code.file.startswith("telescope/algorithms/") for code in codes)


@pytest.mark.parametrize(("lam_alpha", "by_length"), [(None, False), (0.05, True)])
def test_only_functions_that_the_settings_call_are_named(lam_alpha: Any, by_length: bool) -> None:
    codes = code_of("advantage", Settings.of(lam_alpha=lam_alpha))
    functions = {code.function for code in codes}
    assert "gae" in functions
    assert ("length_adaptive_lam" in functions) == by_length


@pytest.mark.parametrize("name", [*POLICY_LOSSES])
def test_every_policy_loss_has_code(name: str) -> None:
    (code,) = code_of("objective", Settings.of(loss=name))
    assert code.function.endswith("_loss")


@pytest.mark.parametrize(
    ("term", "ours", "verl"),
    [
        ("advantage", "gae", "compute_gae_advantage_return"),
        ("whitened", "masked_whiten", "masked_whiten"),
        ("value_loss", "clipped_value_loss", "compute_value_loss"),
        ("clip", "clipped_policy_loss", "compute_policy_loss_vanilla"),
        ("aggregate", "aggregate", "agg_loss"),
        ("kl", "kl_penalty", "apply_kl_penalty"),
        ("response_mask", "sample_batch", "eos_mask"),
        ("shift", "value_forward", "-response_length - 1 : -1"),
    ],
)
def test_verls_names_stand_beside_ours(term: str, ours: str, verl: str) -> None:
    codes = code_of(term, Settings.of())
    assert ours in {code.function for code in codes}
    assert any(verl in name for code in codes for name in code.verl)
    assert all("(verl/" in name for code in codes for name in code.verl)


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_view_shows_lines_and_names(lang: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "--code", "--token", "4", "--lang", lang])
    out = capsys.readouterr().out
    for said in (
        "telescope/algorithms/advantages.py:",
        "advantages = _discounted_suffix_sum(deltas, gamma * lam)",
        "compute_gae_advantage_return (verl/trainer/ppo/core_algos.py)",
        "agg_loss",
        "[:, -response_length-1:-1]",
        "response_mask",
    ):
        assert said in out


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_token_view_names_the_function_of_each_term(lang: str) -> None:
    text = "".join(render(demo(), token=3, lang=lang, width=200, color=False).split())
    for function in ("kl_penalty", "compute_advantages", "td_errors", "gae", "masked_whiten"):
        said = {"zh": f"由{function}", "en": f"madeby{function}"}[lang]
        assert said in text


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_the_list_of_columns_says_who_makes_each(
    lang: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["explain", "--columns", "--lang", lang])
    out = capsys.readouterr().out
    for column in COLUMNS.values():
        block = re.split(rf"\n  {column.name}\b", out)[1]
        made_by = re.search(r"^ +(?:由谁算出：|made by) (.*)$", block, re.MULTILINE)
        assert made_by[1] == column.maker


@pytest.mark.parametrize("lang", ["zh", "en"])
def test_who_computes_old_log_probs_is_said_once_and_is_true(lang: str) -> None:
    """It is the actor's own forward, inside the call that the column names, unless skipped."""
    column = COLUMNS["old_log_probs"]
    said = column.zh if lang == "zh" else column.en
    maker = column.maker.removeprefix("actor.").partition("(")[0]
    assert maker in said
    assert "compute_log_prob" in said
    assert "actor.old_log_probs = auto" in said
    actor = (ROOT / "telescope/roles/actor.py").read_text("utf-8")
    body = actor.partition(f"def {maker}(")[2].partition("\n    def sample(")[0]
    assert "with_old_log_probs" in body
    assert "old_log_probs = self.compute_log_prob(batch)" in body
    assert 'old_log_probs = batch["rollout_log_probs"]' in body


def test_reading_the_code_imports_no_torch() -> None:
    program = (
        "import sys; from telescope.explain.code import NAMES, code_of; "
        "from telescope.explain.settings import Settings; "
        "[code_of(name, Settings.of()) for name in NAMES]; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_nothing_whitens_where_advantages_are_used_as_they_are() -> None:
    assert code_of("whitened", Settings.of(whiten=False)) == []
    assert [code.function for code in code_of("whitened", Settings.of())] == ["masked_whiten"]
