"""benchmarks/ablate.py: every run is the base with what its name says changed.

The page is made of the results.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from telescope.config import changes
from tests import ROOT

SCRIPT = ROOT / "benchmarks" / "ablate.py"
JOBS = ("smollm2", "builtin")


@pytest.fixture(scope="module")
def ablate() -> Any:
    spec = importlib.util.spec_from_file_location("ablate", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["ablate"] = module
    spec.loader.exec_module(module)
    return module


def config_of(ablate: Any, job: str, name: str) -> Any:
    return ablate.config_of(ablate.JOBS[job], name, steps=7, seed=1, folder="somewhere")


EXPECTED = {
    "base": [],
    "λ = 0": ["credit.lam: 0.95 → 0.0"],
    "λ = 1": ["credit.lam: 0.95 → 1.0"],
    "no critic: reinforce++": ["credit.estimator: gae → reinforce++"],
    "no critic: rloo, 4 per prompt": [
        "rollout.batch_size: {prompts} → {quarter}",
        "rollout.n: 1 → 4",
        "credit.estimator: gae → rloo",
    ],
    "whitening off": ["credit.whiten: auto → False"],
    "no bonus": ["actor.entropy_coef: {bonus} → 0.0"],
    "no bonus, whitening off": ["credit.whiten: auto → False", "actor.entropy_coef: {bonus} → 0.0"],
    "no bonus, no critic: rloo, 4 per prompt": [
        "rollout.batch_size: {prompts} → {quarter}",
        "rollout.n: 1 → 4",
        "credit.estimator: gae → rloo",
        "actor.entropy_coef: {bonus} → 0.0",
    ],
    "KL abs": ["credit.kl_kind: k1 → abs"],
    "KL k2": ["credit.kl_kind: k1 → k2"],
    "KL k3": ["credit.kl_kind: k1 → k3"],
    "KL off": ["credit.kl_coef: {beta} → 0.0"],
    "head normal": ["critic.head_init: zero → normal"],
    "head hl_gauss": ["critic.loss: mse → hl_gauss"],
    "head start of 10 steps": ["critic_warmup: 0 → 10"],
}


@pytest.mark.parametrize("job", JOBS)
def test_each_run_differs_from_the_base_in_what_its_name_says_and_in_nothing_else(
    ablate: Any, job: str
) -> None:
    base = config_of(ablate, job, "base")
    words = {
        "prompts": base.rollout.batch_size,
        "quarter": base.rollout.batch_size // 4,
        "beta": base.credit.kl_coef,
        "bonus": base.actor.entropy_coef,
    }
    assert list(ablate.runs()) == list(EXPECTED)
    for name, expected in EXPECTED.items():
        config = config_of(ablate, job, name)
        assert changes(base, config) == [text.format(**words) for text in expected]
        assert config.rollout.batch_size * config.rollout.n == base.rollout.batch_size
        assert (config.steps, config.seed, config.dir) == (7, 1, "somewhere")


@pytest.mark.parametrize("job", JOBS)
def test_the_base_is_the_recipe_but_for_what_costs_time_and_changes_no_result(
    ablate: Any, job: str
) -> None:
    changed = {
        text.partition(":")[0]
        for text in changes(
            ablate.load_config(ablate.JOBS[job].recipe), config_of(ablate, job, "base")
        )
    }
    free = {
        "eval.every",
        "eval.samples",
        "eval.prompts",
        "ledger.samples",
        "checkpoint.every",
        "log.every",
        "rollout.gpu_memory_utilization",
        "device",
    }
    assert changed <= free | {"steps", "seed", "dir"}
    base = config_of(ablate, job, "base")
    assert (base.credit.lam, base.credit.by_critic, base.credit.whitens, base.credit.kl_kind) == (
        0.95,
        True,
        True,
        "k1",
    )


def test_what_is_read_off_a_curve(ablate: Any) -> None:
    assert ablate.tenths([0.0, 1.0] * 10) == [0.5] * 10
    assert ablate.tenths([0.25, 0.75]) == [0.25, 0.75]
    assert ablate.tenths([]) == []
    assert (
        ablate.reached([0, 0, 0, 1, 1, 1, 1, 1], 0.5) == 6
    )  # the first five that mean 0.5 or more are the second to the sixth
    assert ablate.reached([1, 1, 1, 1], 0.5) is None  # fewer than five


def row(run: str, seed: int, level: float, **changed: Any) -> dict[str, Any]:
    measured = {
        "sampled": [0.25, level],
        "greedy": [0.5, 1.0],
        "kl": 0.125,
        "explained_observed": 0.5,
        "explained": [-0.25] + [0.5] * 9,
    }
    where = {"seconds": 12.3, "date": "2001-02-03", "machine": "a machine"}
    return {
        "run": run,
        "seed": seed,
        "steps": 20,
        **where,
        **measured,
        "scores": [0.0] * 10 + [level] * 10,
        **changed,
    }


def test_the_page_is_drawn_from_the_results_and_keeps_what_is_written_by_hand(
    ablate: Any, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="it comes with the extra `gym`")
    no_critic = {"explained_observed": None, "explained": []}
    rows = [
        row("base", 0, 0.95),
        row("base", 1, 0.75),
        row("λ = 0", 0, 0.25),
        row("no critic: reinforce++", 0, 0.95, **no_critic),
    ]
    shorter = row("λ = 1", 0, 0.95, steps=10)
    (tmp_path / "builtin.jsonl").write_text(
        "".join(json.dumps(r) + "\n" for r in [shorter, *rows]), "utf-8"
    )
    (tmp_path / "builtin.notes.md").write_text("### What it teaches\n\nPatience.\n", "utf-8")
    ablate.render(tmp_path)
    page, picture = ((tmp_path / name).read_text("utf-8") for name in ("README.md", "builtin.svg"))
    lines = {
        line.split(" | ")[0].removeprefix("| "): line.strip("| ").split(" | ")
        for line in page.splitlines()
        if line.startswith("| ")
    }
    halves = " ".join(["0.00"] * 5)
    base = [
        "base",
        "0.850 (0.750 to 0.950)",
        "1.000 (1.000 to 1.000)",
        "15, 1 of 2 never",
        f"{halves} 0.85 0.85 0.85 0.85 0.85",
    ]
    assert lines["base"][:5] == base
    assert lines["base"][5:7] == [
        "0.125 (0.125 to 0.125)",
        "-0.25 (-0.25 to -0.25) → 0.50 (0.50 to 0.50)",
    ]
    assert lines["λ = 0"][3] == "never"
    assert lines["no critic: reinforce++"][5:] == ["0.125", "–", "–", "12"]
    assert "λ = 1" not in lines  # of another number of steps
    assert (
        "20 steps of 256 responses, seeds 0, 1; a machine; 2001-02-03. Before training: 0.250 "
        "sampled and 0.500 greedy." in page
    )
    assert page.endswith("### What it teaches\n\nPatience.\n")
    assert "SmolLM2" not in page  # not measured, not mentioned
    assert all(f">{question}<" in picture for question in ablate.RUNS)
    assert len(picture) < 150_000
    ablate.render(tmp_path)
    assert (page, picture) == tuple(
        (tmp_path / name).read_text("utf-8") for name in ("README.md", "builtin.svg")
    )


def test_a_run_of_its_own_process_measures_what_the_table_needs(ablate: Any) -> None:
    found = ablate.train(ablate.JOBS["builtin"], "KL k3", steps=1, seed=0)
    assert set(found) == set(row("", 0, 0.5))
    assert (found["run"], found["steps"], len(found["scores"]), len(found["explained"])) == (
        "KL k3",
        1,
        1,
        1,
    )
    assert found["kl"] != 0
    assert 0 < found["sampled"][0] < found["greedy"][0] < 1
