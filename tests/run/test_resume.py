"""A run that was stopped and resumed is the run that was never stopped, bit for bit."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from telescope.commands import main
from telescope.config import Config, to_toml
from telescope.errors import TelescopeError
from telescope.run import checkpoint
from telescope.trainer import Interrupted, Trainer
from tests.fakes import read_shards, tiny_config

STEPS = 5
MakeConfig = Callable[..., Config]
StopAt = Callable[[str], None]
Train = Callable[[Config, str], str]

# Draws from every global generator, in evaluations too. A file called `stop` next to it says "SIGNAL train 2" (at the second
# call on training prompts), "SIGNAL eval 6", or "save train 4" (killed while the checkpoint after that step is half written).
REWARD = """
import os, random, signal
from pathlib import Path

import numpy
import torch

for seed in (random.seed, numpy.random.seed, torch.manual_seed):
    seed(7)
calls = {"train": 0, "eval": 0}
stop = Path(__file__).with_name("stop")


def noisy(prompts, completions, split):
    calls[split[0]] += 1
    what, kind, number = stop.read_text().split() if stop.exists() else ("", "", "0")
    if kind == split[0] and calls[kind] == int(number):
        if what == "save":
            torch.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.kill(os.getpid(), getattr(signal, what))
    return [len(text) / 10 + random.random() + numpy.random.random() + float(torch.rand(())) for text in completions]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five training prompts, so that batches of four cross the epochs; three held-out ones; the reward function."""
    folder = tmp_path_factory.mktemp("files")
    for split, count in (("train", 5), ("eval", 3)):
        rows = [
            {"prompt": f"请问{i}+{i}={'4' * (i % 3 + 1)}？", "split": split} for i in range(count)
        ]
        (folder / f"{split}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows), "utf-8"
        )
    (folder / "reward.py").write_text(REWARD, "utf-8")
    return folder


@pytest.fixture(scope="module")
def config_in(files: Path, tiny_model: Path) -> MakeConfig:
    """config_in(folder, ("steps", "3"), …): everything that has a state is switched on."""

    def make(folder: Path, *overrides: tuple[str, str]) -> Config:
        settings = {
            "steps": str(STEPS),
            "seed": "3",
            "data.files": str(files / "train.jsonl"),
            "data.eval_files": str(files / "eval.jsonl"),
            "data.max_prompt_tokens": "16",
            "reward.functions": f"{files / 'reward.py'}:noisy",
            "rollout.batch_size": "4",
            "rollout.n": "2",
            "eval.samples": "4",
            "eval.every": "3",
            "checkpoint.every": "2",
            "credit.kl_coef": "0.1",
            "credit.kl_target": "0.01",
            "credit.kl_horizon": "100",
            "critic_warmup": "1",
            "reward.normalise": "true",
            "reward.clip": "1.5",
            "reward.overlong_tokens": "3",
        }
        for role in ("actor", "critic"):
            settings |= {
                f"{role}.epochs": "2",
                f"{role}.minibatches": "2",
                f"{role}.schedule": "linear",
                f"{role}.warmup_steps": "2",
            }
        return tiny_config(folder, tiny_model, *settings.items(), *overrides)

    return make


@pytest.fixture(scope="module")
def unbroken(config_in: MakeConfig, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """The run that nothing stopped."""
    config = config_in(tmp_path_factory.mktemp("unbroken"))
    Trainer(config).fit()
    return config


def rows(config: Config) -> list[dict[str, Any]]:
    """metrics.jsonl without what a clock measured."""
    lines = (config.run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith(("timing/", "perf/"))}
        for line in lines
    ]


def last_checkpoint(config: Config) -> Path:
    return checkpoint.list_checkpoints(config.run_dir / "checkpoints")[-1]


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, tensors inside included."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def assert_same_run(one: Config, other: Config) -> None:
    assert rows(one) == rows(other)
    assert last_checkpoint(one).name == last_checkpoint(other).name
    for role in ("actor", "critic"):
        states = [read_shards(last_checkpoint(config), role) for config in (one, other)]
        assert same(*states), f"weights or moments of the {role} differ"
    states = [
        torch.load(last_checkpoint(config) / "state.pt", weights_only=True)
        for config in (one, other)
    ]
    for key in states[0]:
        assert same(states[0][key], states[1][key]), f"state.pt: `{key}` differs"


@pytest.fixture
def stop_at(files: Path) -> Iterator[StopAt]:
    """stop_at("SIGTERM train 2"): the reward function sends that signal then."""

    def write(how: str) -> None:
        (files / "stop").write_text(how)

    yield write
    (files / "stop").unlink(missing_ok=True)


@pytest.fixture
def stopped(stop_at: StopAt, files: Path) -> Train:
    """Trains until the reward function stops the run in this process; returns what the user is told."""

    def train(config: Config, how: str) -> str:
        stop_at(how)
        with pytest.raises(Interrupted) as stop:
            Trainer(config).fit()
        (files / "stop").unlink()
        return str(stop.value)

    return train


@pytest.fixture
def killed(stop_at: StopAt, files: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains in another process until the reward function kills it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as in this process, see conftest.py
    processes = multiprocessing.get_context(
        "forkserver"
    )  # one process imports torch; those that are killed are its forks
    processes.set_forkserver_preload(["telescope.trainer"])

    def train(config: Config, how: str) -> str:
        recipe = config.run_dir.parent / "recipe.toml"
        recipe.write_text(to_toml(config), "utf-8")
        stop_at(how)
        process = processes.Process(target=main, args=(["train", str(recipe)],))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        (files / "stop").unlink()
        return "killed"

    return train


def test_the_runs_compared_here_use_everything_that_has_a_state(unbroken: Config):
    trained = [row for row in rows(unbroken) if "reward/kl_coef" in row]
    assert [row["step"] for row in trained] == [1, 2, 3, 4, 5]
    assert (
        len({row["reward/kl_coef"] for row in trained}) == STEPS - 1
    )  # β adapts, once the actor trains
    assert ["actor/lr" in row for row in trained] == [
        False,
        True,
        True,
        True,
        True,
    ]  # the critic alone first
    assert len({row["critic/lr"] for row in trained}) > 2  # warm-up, then decay
    assert [row["step"] for row in rows(unbroken) if "eval/sampled_score" in row] == [0, 3, 5]


def test_the_same_config_twice_is_the_same_run(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    again = config_in(tmp_path)
    Trainer(again).fit()
    assert_same_run(unbroken, again)


def test_global_generators_matter_to_these_runs(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    """Else the tests below would not notice if a resumed run forgot to restore them."""
    other = config_in(tmp_path)
    trainer = Trainer(other)
    torch.manual_seed(8)
    trainer.fit()
    assert rows(unbroken)[1] != rows(other)[1]


@pytest.mark.parametrize(
    ("name", "step"), [*(("SIGTERM", step) for step in range(1, STEPS)), ("SIGINT", 3)]
)
def test_resume_continues_bit_for_bit(
    name: str, step: int, unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    config = config_in(tmp_path)
    message = stopped(config, f"{name} train {step}")
    assert message == f"stopped by {name} after step {step}, which is saved: go on with --resume"
    assert last_checkpoint(config).name == f"step_{step:06d}"
    assert not (config.run_dir / "metrics.discarded.jsonl").exists()
    torch.manual_seed(99)  # what this process drew meanwhile does not matter
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


def test_a_signal_in_the_last_step_costs_no_evaluation(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stop_at: StopAt
):
    config = config_in(tmp_path)
    stop_at(f"SIGTERM train {STEPS}")
    with contextlib.suppress(
        Interrupted
    ):  # whether it still finishes or stops here: after --resume it is the same run
        Trainer(config).fit()
    stop_at("SIGTERM train 9")
    Trainer(config, resume=True).fit()
    assert rows(config) == rows(unbroken)


def test_a_run_stopped_at_every_step_continues_bit_for_bit(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stop_at: StopAt
):
    config = config_in(tmp_path)
    stop_at("SIGTERM train 1")  # the first training step of each process
    for step in range(1, STEPS):
        with pytest.raises(Interrupted, match=f"after step {step},"):
            Trainer(config, resume=True).fit()
    stop_at("SIGTERM train 9")
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


@pytest.mark.parametrize(
    ("how", "saved", "redone"),
    [
        ("SIGKILL train 2", None, [1]),  # inside step 2, before there was any checkpoint
        ("SIGKILL train 4", "step_000002", [3]),  # inside step 4
        ("SIGKILL eval 6", "step_000004", [5]),  # after the last step, in the last evaluation
        ("save train 4", "step_000002", [3, 4]),  # while step 4 was being saved
    ],
    ids=["before-the-first-checkpoint", "in-a-step", "in-the-last-evaluation", "while-saving"],
)
def test_resume_after_kill_9_continues_bit_for_bit(
    how: str,
    saved: str | None,
    redone: list[int],
    unbroken: Config,
    config_in: MakeConfig,
    tmp_path: Path,
    killed: Train,
):
    config = config_in(tmp_path)
    killed(config, how)
    found = checkpoint.list_checkpoints(config.run_dir / "checkpoints")
    assert [path.name for path in found[-1:]] == ([saved] if saved else [])
    before = rows(config)
    leftovers = list((config.run_dir / "checkpoints").glob(".*"))
    assert bool(leftovers) == how.startswith("save")

    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)
    discarded = [
        json.loads(line)
        for line in (config.run_dir / "metrics.discarded.jsonl").read_text("utf-8").splitlines()
    ]
    assert [row["step"] for row in discarded if row["step"] > 0] == redone
    assert [
        row["step"] for row in before if row["step"] > (int(saved[5:]) if saved else 0)
    ] == redone


def test_a_half_written_last_line_of_metrics_is_left_out(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 3")
    with (config.run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "reward/score_me')
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


def test_lines_of_metrics_that_are_none_are_left_out(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 3")
    with (config.run_dir / "metrics.jsonl").open("ab") as file:
        file.write(
            b'{"step": 1, "reward/\xff\xfe": 0.5}\n\x80\x00\n{"step": "two"}\n{"step": null}\n[4]\n'
        )
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


def test_a_leftover_temporary_checkpoint_is_ignored(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path, stopped: Train
):
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 2")
    folder = config.run_dir / "checkpoints"
    for name in (
        ".writing-step_000009-1",
        "step_000009",
    ):  # the second as from a copy that was cut short: no checkpoint.json
        (folder / name / "actor").mkdir(parents=True)
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == ["step_000002"]
    Trainer(config, resume=True).fit()
    assert_same_run(unbroken, config)


@pytest.mark.parametrize(("keep", "left"), [(1, [5]), (2, [4, 5]), (3, [3, 4, 5])])
def test_only_the_newest_checkpoints_stay(
    keep: int, left: list[int], config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("checkpoint.every", "1"), ("checkpoint.keep", str(keep)))
    Trainer(config).fit()
    assert sorted(path.name for path in (config.run_dir / "checkpoints").iterdir()) == [
        f"step_{step:06d}" for step in left
    ]


def test_without_intermediate_checkpoints_only_the_last_step_is_saved(
    config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("checkpoint.every", "0"))
    Trainer(config).fit()
    assert [path.name for path in (config.run_dir / "checkpoints").iterdir()] == ["step_000005"]


def test_how_often_checkpoints_are_written_changes_nothing_else(
    unbroken: Config, config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("checkpoint.every", "1"), ("checkpoint.keep", "1"))
    Trainer(config).fit()
    assert_same_run(unbroken, config)


def test_an_existing_run_is_not_continued_unasked(unbroken: Config):
    with pytest.raises(TelescopeError, match=r"already holds a run \(step_000005\): pass --resume"):
        Trainer(unbroken)


def test_resuming_a_finished_run_changes_nothing(config_in: MakeConfig, tmp_path: Path):
    config = config_in(tmp_path, ("steps", "1"))
    Trainer(config).fit()
    before = {path: path.read_bytes() for path in config.run_dir.rglob("*") if path.is_file()}
    Trainer(config, resume=True).fit()
    assert {
        path: path.read_bytes() for path in config.run_dir.rglob("*") if path.is_file()
    } == before


def test_resuming_a_run_of_no_steps_repeats_no_row(config_in: MakeConfig, tmp_path: Path):
    config = config_in(tmp_path, ("steps", "0"))
    Trainer(config).fit()
    Trainer(config, resume=True).fit()
    assert [row["step"] for row in rows(config)] == [0, 0]  # the evaluations before and after


def test_a_finished_run_goes_on_when_given_more_steps(config_in: MakeConfig, tmp_path: Path):
    config = config_in(tmp_path, ("steps", "1"))
    Trainer(config).fit()
    Trainer(config_in(tmp_path, ("steps", "2")), resume=True).fit()
    steps = [row["step"] for row in rows(config)]
    assert steps == [0, 1, 1, 2, 2]  # twice: a step, and the evaluation after the last step


def test_resume_prints_what_changed_in_the_config(
    config_in: MakeConfig, tmp_path: Path, stopped: Train, capsys: pytest.CaptureFixture[str]
):
    config = config_in(tmp_path)
    stopped(config, "SIGTERM train 4")
    capsys.readouterr()
    main(
        [
            "train",
            str(config.run_dir / "config.toml"),
            "--resume",
            "--actor.lr",
            "0.5",
            "--critic.clip_value",
            "0.3",
        ]
    )
    printed = capsys.readouterr().out
    assert f"resuming {config.run_dir} after step 4" in printed
    assert "config changed: actor.lr: 0.001 → 0.5" in printed
    assert "config changed: critic.clip_value: 0.2 → 0.3" in printed
    assert printed.count("config changed") == 2


def test_resume_with_the_same_config_prints_no_change(
    config_in: MakeConfig, tmp_path: Path, stopped: Train, capsys: pytest.CaptureFixture[str]
):
    config = config_in(tmp_path, ("critic.clip_value", "none"))
    stopped(config, "SIGTERM train 4")
    capsys.readouterr()
    Trainer(config, resume=True).fit()
    assert "config changed" not in capsys.readouterr().out


def test_the_command_line_says_how_to_go_on_after_a_signal(
    config_in: MakeConfig, tmp_path: Path, stop_at: StopAt, capsys: pytest.CaptureFixture[str]
):
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(to_toml(config_in(tmp_path)), "utf-8")
    stop_at("SIGTERM train 2")
    with pytest.raises(SystemExit) as end:
        main(["train", str(recipe)])
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith(
        "\nstopped by SIGTERM after step 2, which is saved: go on with --resume\n"
    )


def test_a_second_signal_ends_at_once_and_leaves_the_last_checkpoint(
    config_in: MakeConfig, tmp_path: Path
):
    config = config_in(tmp_path, ("reward.functions", "[]"))

    def impatient(prompts: list[str], split: list[str]) -> list[float]:
        impatient.calls += split[0] == "train"
        if impatient.calls == 4:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return [0.0] * len(prompts)

    impatient.calls, before = 0, signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        Trainer(config, reward=impatient).fit()
    assert last_checkpoint(config).name == "step_000002"
    assert signal.getsignal(signal.SIGINT) is before


def constant(completions: list[str]) -> list[float]:
    return [1.0] * len(completions)


def test_a_setting_changed_on_resume_counts(make_config):
    Trainer(make_config(("steps", "1")), reward=constant).fit()
    changed = make_config(("steps", "2"), ("credit.kl_coef", "0.5"), ("actor.weight_decay", "0.1"))
    trainer = Trainer(changed, reward=constant, resume=True)
    assert trainer.kl_coef == 0.5
    assert {
        group["weight_decay"] for group in trainer.roles.actor.learner.optimizer.param_groups
    } == {0.1}


def test_resuming_with_another_reward_is_refused(make_config):
    Trainer(make_config(("steps", "1")), reward=constant).fit()
    with pytest.raises(
        TelescopeError,
        match="was trained with the reward constant, not verdict, sum: pass the same reward=",
    ):
        Trainer(make_config(("steps", "2")), resume=True)


def test_two_processes_cannot_train_one_run(make_config):
    config = make_config()

    def nested(completions: list[str]) -> list[float]:
        with pytest.raises(TelescopeError, match="another process is training"):
            Trainer(config, reward={"nested": constant}, resume=True).fit()
        return [1.0] * len(completions)

    Trainer(config, reward=nested).fit()


def test_a_checkpoint_set_aside_by_a_killed_process_comes_back(make_config):
    config = make_config(("steps", "1"))
    Trainer(config, reward=constant).fit()
    folder = config.run_dir / "checkpoints"
    (folder / "step_000001").rename(folder / ".replaced-step_000001-99")
    checkpoint.remove_leftovers(folder)
    assert [p.name for p in checkpoint.list_checkpoints(folder)] == ["step_000001"]


def test_a_bfloat16_run_resumes_from_its_float32_masters(make_config, tmp_path: Path):
    """Steps far below bfloat16's resolution: a resume from the rounded weights would lose them."""
    settings = (
        ("model.dtype", "bfloat16"),
        ("actor.lr", "1e-5"),
        ("critic.lr", "1e-5"),
        ("checkpoint.every", "2"),
    )
    whole, part = (
        make_config(*settings, ("steps", "4"), ("name", name)) for name in ("whole", "part")
    )
    Trainer(whole, reward=constant).fit()
    Trainer(part.model_copy(update={"steps": 2}), reward=constant).fit()
    resumed = Trainer(part, reward=constant, resume=True)
    learner = resumed.roles.actor.learner
    assert any(not torch.equal(master, master.bfloat16().float()) for master in learner.masters)
    assert all(
        torch.equal(w, m.to(w.dtype)) for w, m in zip(learner.weights, learner.masters, strict=True)
    )
    resumed.fit()
    assert [row for row in rows(part) if row["step"] > 2] == [
        row for row in rows(whole) if row["step"] > 2
    ]
