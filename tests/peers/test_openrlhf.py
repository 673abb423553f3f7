"""OpenRLHF's own trainer and experience maker, watched: `make test-peers` runs this with 0.11.

The classes are the real ones: BasePPOTrainer, RemoteExperienceMaker, Experience, Actor, the
critic's model, and what they call. Empty modules stand for what a CPU cannot have or what is not
called here: deepspeed, flash_attn, vLLM and aiohttp. A model group answers in this process instead
of in Ray workers, and its `fit` trains nothing.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

import telescope
from telescope.commands import main
from telescope.explain.trace import Tracer
from telescope.ledger.reader import samples, steps
from telescope.peers import openrlhf
from tests.peers.batches import judged
from tests.tiny import write_tiny_model

has_openrlhf = importlib.util.find_spec("openrlhf") is not None
needs_openrlhf = pytest.mark.skipif(
    not has_openrlhf, reason="OpenRLHF is not installed: make test-peers"
)
EMPTY = (
    "deepspeed.runtime.zero.partition_parameters",
    "deepspeed.ops.adam",
    "flash_attn.bert_padding",
    "flash_attn.utils.distributed",
    "vllm.inputs",
    "vllm.utils",
    "aiohttp",
)
PROMPT = [2, 3, 4, 5]


def empty(name: str) -> ModuleType:
    """A module that has every attribute."""

    def attribute(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        return MagicMock()

    made = ModuleType(name)
    made.__path__ = []
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    vars(made)["__getattr__"] = attribute
    return made


@pytest.fixture(scope="module")
def peer() -> Any:
    import peft  # noqa: F401  # before the empty modules: it looks which of them are there
    import transformers  # noqa: F401

    for name in EMPTY:
        parts = name.split(".")
        for n in range(len(parts)):
            whole = ".".join(parts[: n + 1])
            sys.modules.setdefault(whole, empty(whole))
    trainer = importlib.import_module("openrlhf.trainer.ppo_trainer")
    maker = importlib.import_module("openrlhf.trainer.ppo_utils.experience_maker")
    here = SimpleNamespace(get=lambda ref: ref, put=lambda ref: ref)
    for module in (trainer, maker):
        vars(module)["ray"] = here
    return trainer


class Group:
    """A model group whose model is in this process."""

    def __init__(self, forward: Callable[..., Any] | None = None) -> None:
        self.forward = forward

    def async_run_method_batch(self, method_name: str, **columns: Any) -> list[Any]:
        if self.forward is None or method_name != "forward":
            return []
        rows = zip(*columns.values(), strict=True)
        return [[self.forward(**dict(zip(columns, row, strict=True)))] for row in rows]

    def async_run_method(self, method_name: str, **_: Any) -> list[Any]:
        return [{"policy_loss": 0.25, "kl": 0.0}]


def arguments(estimator: str, **changed: Any) -> Any:
    per_prompt = 1 if estimator in ("gae", "reinforce") else 2
    space = SimpleNamespace
    return space(
        actor=space(eps_clip=0.2, eps_clip_low_high=(0.2, 0.3), num_nodes=1, num_gpus_per_node=1),
        critic=space(value_clip=0.5, freezing_steps=-1),
        algo=space(
            advantage=space(
                estimator=estimator, gamma=changed.get("gamma", 1.0), lambd=0.9, no_std_norm=False
            ),
            kl=space(
                estimator=changed.get("kl_kind", "k1"),
                use_loss=False,
                init_coef=changed.get("beta", 0.05),
                target=None,
            ),
        ),
        ds=space(ring_attn_size=1, tensor_parallel_size=1, enable_sleep=False),
        train=space(
            dynamic_batch_enable=False,
            colocate_all=False,
            colocate_actor_ref=False,
            colocate_critic_reward=False,
        ),
        rollout=space(
            n_samples_per_prompt=per_prompt, micro_batch_size=3, temperature=1.0, batch_size=6
        ),
        reward=space(
            clip_range=(-10, 10), overlong_buffer_len=None, stop_properly_penalty_coef=None
        ),
        logger=space(wandb=space(key=None), tensorboard_dir=None),
        ckpt=space(best_metric_key=""),
    )


def trainer_of(peer: Any, model: Path, args: Any) -> Any:
    from openrlhf.models import Actor, get_llm_for_sequence_regression
    from transformers import AutoTokenizer

    options: dict[str, Any] = {"attn_implementation": "eager", "param_dtype": "bf16"}
    actor = Actor(str(model), **options).float()  # it offers 16 bits only
    reference = Actor(str(write_tiny_model(model.parent, seed=7)), **options).float()
    critic = get_llm_for_sequence_regression(str(model), "critic", **options).float()
    torch.manual_seed(3)
    torch.nn.init.normal_(critic.score.weight)

    def forward(of: Any) -> Group:
        return Group(
            lambda sequences, action_mask, attention_mask: of(
                sequences, action_mask, attention_mask=attention_mask
            )
        )

    has_critic = args.algo.advantage.estimator == "gae"
    return peer.BasePPOTrainer(
        SimpleNamespace(args=args),
        forward(actor),
        forward(critic) if has_critic else None,
        None,
        forward(reference),
        None,
        AutoTokenizer.from_pretrained(model),
    )


def rollouts(tool: bool = False) -> list[Any]:
    """Six answers to three prompts as OpenRLHF's generator makes them."""
    experience = importlib.import_module("openrlhf.trainer.ppo_utils.experience").Experience
    generator = torch.Generator().manual_seed(1)
    made = []
    for row, length in enumerate([5, 7, 4, 6, 7, 3]):
        answer = torch.randint(9, 18, (length,), generator=generator)
        answer[-1] = 1
        sequence = torch.cat([torch.tensor([*PROMPT, 6 + row // 2]), answer])
        mask = torch.zeros(len(sequence), dtype=torch.long)
        mask[len(PROMPT) + 1 :] = 1
        if tool and row == 1:
            mask[len(PROMPT) + 3 : len(PROMPT) + 5] = 0
        made.append(
            experience(
                sequences=sequence[None],
                attention_mask=torch.ones_like(sequence)[None],
                action_mask=mask[1:][None],
                rewards=torch.tensor([float(row % 3 == 0)]),
                scores=torch.tensor([float(row % 3 == 0)]),
                response_length=torch.tensor([float(length)]),
                truncated=torch.tensor([row == 4]),
                total_length=torch.tensor([float(len(sequence))]),
                prompts=["?"],
                labels=[""],
                info={"reward": torch.tensor([float(row % 3 == 0)])},
            )
        )
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    return write_tiny_model(tmp_path / "model")


@needs_openrlhf
@pytest.mark.parametrize(
    ("estimator", "beta", "expected"),
    [
        ("gae", 0.05, {"return", "whitened"}),
        ("reinforce", 0.05, {"whitened"}),
        ("rloo", 0.0, {"advantage"}),
        ("group_norm", 0.0, {"advantage"}),
        ("dr_grpo", 0.0, {"advantage"}),
        ("reinforce_baseline", 0.0, {"whitened"}),
    ],
)
def test_the_numbers_of_openrlhf_are_recomputed(
    peer: Any, model: Path, tmp_path: Path, estimator: str, beta: float, expected: set[str]
) -> None:
    trainer = trainer_of(peer, model, arguments(estimator, beta=beta))
    recorder = telescope.watch(trainer, tmp_path / "run", strict=True)
    for step in (5, 6):
        trainer.train_step(rollouts(), step)
    recorder.close()
    assert steps(tmp_path / "run") == [5, 6]
    found = samples(tmp_path / "run", 5)
    assert [len(sample) for sample in found] == [5, 7, 4, 6, 7, 3]
    assert [sample.score for sample in found] == [1, 0, 0, 1, 0, 0]
    assert [sample.truncated for sample in found] == [False] * 4 + [True, False]
    marked = judged(tmp_path / "run", 5)
    assert expected <= marked.keys()
    assert all(marked.values())
    assert '"policy_loss": 0.25' in (tmp_path / "run" / "metrics.jsonl").read_text()


@needs_openrlhf
def test_values_and_log_probs_are_those_of_the_token(
    peer: Any, model: Path, tmp_path: Path
) -> None:
    trainer = trainer_of(peer, model, arguments("gae"))
    telescope.watch(trainer.experience_maker, tmp_path / "run", strict=True)
    rows = rollouts()
    trainer.experience_maker.make_experience_batch(rows)
    sample = samples(tmp_path / "run", 0)[2]
    sequence = rows[2].sequences
    from transformers import AutoModelForCausalLM

    with torch.no_grad():
        same = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).float()
        logits = same(sequence).logits
    expected = logits.log_softmax(-1)[0, 4:-1].gather(1, sequence[0, 5:, None]).flatten()
    assert sample.token_ids == sequence[0, 5:].tolist()
    assert sample.columns["old_log_probs"] == pytest.approx(expected.tolist(), abs=1e-5)
    assert sample.columns["kl"][0] != 0


@needs_openrlhf
def test_its_rule_for_the_kl_of_a_group_is_named(
    peer: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trainer_of(peer, model, arguments("group_norm", beta=0.5))
    telescope.watch(trainer, tmp_path / "run", strict=True)
    trainer.train_step(rollouts(), 0)
    main(["explain", str(tmp_path / "run"), "--sample", "1", "--token", "1", "--lang", "en"])
    said = " ".join(capsys.readouterr().out.split())
    assert "compares the scores of a group first and subtracts the KL afterwards" in said


@needs_openrlhf
def test_its_rule_for_a_tools_tokens_is_named(
    peer: Any, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = trainer_of(peer, model, arguments("gae"))
    telescope.watch(trainer, tmp_path / "run", strict=True)
    trainer.train_step(rollouts(tool=True), 0)
    sample = samples(tmp_path / "run", 0)[1]
    assert sample.mask == [1, 1, 0, 0, 1, 1, 1]
    assert {name for name, ok in Tracer(sample).verdicts(1).items() if not ok} == {
        "return",
        "whitened",
    }
    assert all(Tracer(sample).verdicts(4).values())
    main(["explain", str(tmp_path / "run"), "--sample", "1", "--token", "1", "--lang", "en"])
    assert "counts a tool's tokens as time steps" in " ".join(capsys.readouterr().out.split())


@needs_openrlhf
def test_a_trainer_of_its_command_is_watched_from_the_start(
    peer: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TELESCOPE_WATCH", str(tmp_path / "run"))
    monkeypatch.setattr(peer.BasePPOTrainer, "__init__", peer.BasePPOTrainer.__init__)
    openrlhf.watch_module(peer)
    trainer = trainer_of(peer, model, arguments("gae"))
    trainer.train_step(rollouts(), 0)
    trainer.train_step(rollouts(), 1)
    trainer.telescope.close()
    assert steps(tmp_path / "run") == [0, 1]


@needs_openrlhf
def test_a_ray_worker_of_the_command_installs_the_watch(tmp_path: Path) -> None:
    """The command is replaced by a module that asks a worker; Ray is real."""
    package = tmp_path / "openrlhf" / "cli"
    package.mkdir(parents=True)
    (tmp_path / "openrlhf" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "train_ppo_ray.py").write_text(
        "import ray\n"
        "ray.init(num_cpus=1, include_dashboard=False, runtime_env={'env_vars': {'KEPT': 'yes'}})\n"
        "@ray.remote\n"
        "def ask():\n"
        "    import os, sys\n"
        "    names = [type(finder).__module__ for finder in sys.meta_path]\n"
        "    return 'telescope.peers.on_import' in names, os.environ['KEPT']\n"
        "print('worker:', ray.get(ask.remote()))\n"
    )
    root = Path(telescope.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "telescope.peers.openrlhf"],
        env={
            **os.environ,
            "TELESCOPE_WATCH": str(tmp_path / "run"),
            "RAY_ADDRESS": "local",  # a cluster of its own, whatever runs on this machine
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(root)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "worker: (True, 'yes')" in done.stdout, done.stderr[-2000:]
    assert "RuntimeWarning" not in done.stderr


def test_workers_of_its_command_get_a_folder_that_is_theirs_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: dict[str, Any] = {}
    ray = SimpleNamespace(init=lambda **given: seen.update(given))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TELESCOPE_WATCH", "run")

    def command(*_: Any, **__: Any) -> None:
        ray.init(runtime_env={"env_vars": {"KEPT": "yes"}})

    monkeypatch.setattr(openrlhf.runpy, "run_module", command)
    openrlhf.main()
    assert seen["runtime_env"]["env_vars"] == {
        "KEPT": "yes",
        "TELESCOPE_WATCH": str(tmp_path / "run"),
    }


def test_its_ppo_trainer_is_not_taken_for_that_of_trl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BasePPOTrainer:
        pass

    class PPOTrainer(BasePPOTrainer):
        pass

    monkeypatch.setattr(openrlhf, "watch_trainer", lambda *_: "openrlhf")
    assert telescope.watch(PPOTrainer(), tmp_path) == "openrlhf"
