"""The verl plugin: what it records of both trainers of verl 0.9.1.

Most tests run without verl, on objects of the same shape. Those marked with `needs_verl` call
verl's own functions (`make test-peers` installs it).
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from telescope.explain.trace import Tracer
from telescope.ledger.reader import samples, steps
from telescope.peers import verl_plugin
from telescope.peers.on_import import on_import
from tests import ROOT
from tests.peers.batches import batch, judged

needs_verl = pytest.mark.skipif(
    importlib.util.find_spec("verl") is None, reason="verl is not installed: make test-peers"
)


class Node(dict[str, Any]):
    """A config section: items as attributes, as OmegaConf has them."""

    def __getattr__(self, name: str) -> Any:
        value = self[name]
        return Node(value) if isinstance(value, dict) else value


def config(**algorithm: Any) -> Node:
    return Node(
        algorithm={
            "adv_estimator": "gae",
            "gamma": 0.9,
            "lam": 0.8,
            "use_kl_in_reward": False,
            "kl_penalty": "kl",
            "kl_ctrl": {"kl_coef": 0.02},
            **algorithm,
        },
        actor_rollout_ref={
            "actor": {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28},
            "rollout": {"temperature": 1.0},
        },
    )


@pytest.mark.parametrize(
    ("verl_name", "by_std", "ours"),
    [
        ("gae", True, "gae"),
        ("grpo", True, "grpo"),
        ("grpo", False, "dr_grpo"),
        ("grpo_vectorized", True, "grpo"),
        ("rloo", True, "rloo"),
        ("reinforce_plus_plus", True, "reinforce++"),
        ("reinforce_plus_plus_baseline", True, "reinforce++_baseline"),
        ("optimal_token_baseline", True, "optimal_token_baseline"),
        ("gpg", True, "gpg"),
    ],
)
def test_verl_estimators_have_our_names(verl_name: str, by_std: bool, ours: str) -> None:
    assert verl_plugin.estimator_of(verl_name, by_std) == ours


def test_settings_are_translated() -> None:
    found = verl_plugin.settings_of(config(use_kl_in_reward=True, kl_penalty="low_var_kl"))
    assert found == {
        "estimator": "gae",
        "gamma": 0.9,
        "lam": 0.8,
        "kl_coef": 0.02,
        "kl_kind": "k3",
        "clip_low": 0.2,
        "clip_high": 0.28,
        "temperature": 1.0,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TELESCOPE_WATCH", str(tmp_path / "run"))
    return tmp_path / "run"


def verl_batch() -> dict[str, torch.Tensor]:
    """The batch of test_record under verl's names: its advantages are whitened ones."""
    given = batch()
    rows, width = given["responses"].shape
    prompts = torch.randint(5, 90, (rows, 3))
    exists = torch.zeros(rows, width, dtype=torch.long)
    for row, mask in enumerate(given["mask"]):
        exists[row, : int(mask.nonzero()[-1]) + 1] = 1
    return {
        "prompts": prompts,
        "responses": given["responses"],
        "attention_mask": torch.cat([torch.ones(rows, 3, dtype=torch.long), exists], 1),
        "response_mask": given["mask"],
        "values": given["values"],
        "old_log_probs": given["old_log_probs"],
        "token_level_scores": given["token_level_rewards"],
        "token_level_rewards": given["token_level_rewards"],
        "advantages": given["whitened"],
        "returns": given["returns"],
    }


def tensordict_of(fields: dict[str, Any]) -> Any:
    """What verl's TransferQueue gives: texts are a stack, which reads as a list."""
    from tensordict import NonTensorStack, TensorDict

    texts = fields.pop("uid")
    found = TensorDict(fields, batch_size=[len(texts)])
    found["uid"] = NonTensorStack(*texts)
    return found


@pytest.mark.parametrize("given_as", [dict, pytest.param(tensordict_of, marks=needs_verl)])
def test_v1_batches_are_recorded_before_they_are_cleared(folder: Path, given_as: Any) -> None:
    padded = verl_batch()
    lengths = padded["attention_mask"][:, 3:].sum(1).tolist()

    def nested(name: str) -> torch.Tensor:
        rows = [row[:n] for row, n in zip(padded[name], lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    fields = {
        name: nested(name)
        for name in ("responses", "response_mask", "values", "advantages", "returns")
    }
    fields["rm_scores"] = nested("token_level_scores")
    fields["prompts"] = torch.nested.as_nested_tensor(list(padded["prompts"]), layout=torch.jagged)
    fields["uid"] = ["a", "a", "b", "b", "c", "c"]  # type: ignore[assignment]
    stored = ["a_0_0", "a_1_0", "b_0_0", "b_1_0", "c_0_0", "c_1_0"]
    asked: list[dict[str, Any]] = []

    def kv_batch_get(**request: Any) -> Any:
        asked.append(request)
        assert request["keys"] == stored  # else the rows below are others
        found = {name: fields[name] for name in request["select_fields"] if name in fields}
        return given_as(found)

    class PPOTrainer:
        config = config()
        tokenizer = None
        global_steps = 7

        def _compute_metrics(self, batch: Any, metrics: dict[str, Any], **_: Any) -> None:
            metrics["critic/score/mean"] = 0.5

        def fit(self) -> None:
            self._compute_metrics(meta, {})

    module: Any = SimpleNamespace(
        PPOTrainer=PPOTrainer, tq=SimpleNamespace(kv_batch_get=kv_batch_get)
    )
    verl_plugin.watch_v1(module)
    trainer: Any = PPOTrainer()
    meta = SimpleNamespace(
        keys=["c_1_0", "a_0_0", "b_1_0", "pad", "a_1_0", "c_0_0", "b_0_0"],  # as they finished
        tags=[{}] * 3 + [{"is_padding": True}] + [{}] * 3,
        partition_id="train",
    )
    trainer.fit()  # Ray kills the trainer's process after it: everything must be on disk
    assert len(asked) == 1
    assert steps(folder) == [7]
    assert judged(folder, 7) == {"reward": True, "return": True, "whitened": True}
    assert [sample.prompt_index for sample in samples(folder, 7)] == [0, 0, 1, 1, 2, 2]
    assert '"critic/score/mean": 0.5' in (folder / "metrics.jsonl").read_text()


def test_an_error_of_the_plugin_does_not_reach_verl(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class PPOTrainer:
        config = None
        tokenizer = None

        def _compute_metrics(self, batch: Any, metrics: Any) -> str:
            return "done"

        def fit(self) -> None:
            pass

    verl_plugin.watch_v1(SimpleNamespace(PPOTrainer=PPOTrainer, tq=None))  # type: ignore[arg-type]
    assert PPOTrainer()._compute_metrics(None, {}) == "done"
    assert "was not recorded" in caplog.text


@pytest.mark.parametrize(
    "texts", [["a", "b"], np.array(["a", "b"], dtype=object)], ids=["list", "array"]
)
def test_texts_of_a_batch_are_read_from_lists_and_arrays(texts: Any) -> None:
    assert verl_plugin._names(texts) == ["a", "b"]


def test_workers_of_a_ray_cluster_get_the_variables_and_a_folder_that_is_theirs_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TELESCOPE_WATCH", "run")
    monkeypatch.setenv("TELESCOPE_WATCH_EVERY", "5")
    module: Any = ModuleType("constants_ppo")
    module.get_ppo_ray_runtime_env = lambda config=None: {"env_vars": {"NCCL_DEBUG": "WARN"}}
    verl_plugin.hand_on(module)
    assert module.get_ppo_ray_runtime_env(None)["env_vars"] == {
        "NCCL_DEBUG": "WARN",
        "TELESCOPE_WATCH": str(tmp_path / "run"),
        "TELESCOPE_WATCH_EVERY": "5",
    }


def data_proto(fields: dict[str, torch.Tensor]) -> Any:
    return SimpleNamespace(batch=fields, non_tensor_batch={"uid": ["a", "a", "b", "b", "c", "c"]})


def test_the_legacy_trainer_is_recorded_when_it_computes_advantages(folder: Path) -> None:
    class RayPPOTrainer:
        config = Node(config() | {"data": {"max_response_length": 9}})
        tokenizer = None
        global_steps = 3

        def fit(self) -> None:
            module.compute_advantage(data=data_proto(verl_batch()))

    module: Any = ModuleType("ray_trainer")
    module.RayPPOTrainer = RayPPOTrainer
    module.compute_advantage = lambda data: data
    verl_plugin.watch_legacy(module)
    RayPPOTrainer().fit()
    assert judged(folder, 3) == {"reward": True, "return": True, "whitened": True}
    longest = verl_batch()["responses"].shape[1]
    assert [sample.truncated for sample in samples(folder, 3)] == [
        len(sample) == longest for sample in samples(folder, 3)
    ]
    assert [len(sample) for sample in samples(folder, 3)] == verl_batch()["attention_mask"][
        :, 3:
    ].sum(1).tolist()


@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_what_is_kept_of_the_legacy_trainer_are_whole_groups_of_any_length(
    folder: Path, monkeypatch: pytest.MonkeyPatch, estimator: str
) -> None:
    monkeypatch.setenv("TELESCOPE_WATCH_SAMPLES", "4")
    fields = verl_batch()
    lengths = fields["attention_mask"][:, 3:].sum(1)
    shortest_first = lengths.argsort()  # as verl may hand them on
    names = ["b", "a", "c", "b", "c", "a"]
    data = SimpleNamespace(
        batch={name: rows[shortest_first] for name, rows in fields.items()},
        non_tensor_batch={"uid": np.array(names, dtype=object)},
    )
    recorder = verl_plugin._recorder(None, config(adv_estimator=estimator))
    verl_plugin._record_padded(recorder, 1, data, config())
    recorder.close()
    found = samples(folder, 1)
    assert [sample.prompt_index for sample in found] == [0, 0, 1, 1]
    places = [names.index("a"), 5, names.index("b"), 3]  # both of a, both of b
    expected = [lengths[shortest_first[place]].item() for place in places]
    assert [len(sample) for sample in found] == expected
    if estimator == "gae":
        assert judged(folder, 1) == {"reward": True, "return": True, "whitened": True}


@pytest.mark.parametrize(
    ("name", "by_std", "advantages"),
    [
        ("grpo", True, [0.7071, -0.7071, 0.0, 0.0, 0.7071, -0.7071]),  # ±(1/2)/σ, σ = √(1/2)
        ("grpo", False, [0.5, -0.5, 0.0, 0.0, 1.0, -1.0]),
        ("rloo", True, [1.0, -1.0, 0.0, 0.0, 2.0, -2.0]),
    ],
)
def test_advantages_of_groups_are_recomputed_even_if_the_kept_rows_are_no_whole_group(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    by_std: bool,
    advantages: list[float],
) -> None:
    monkeypatch.setenv("TELESCOPE_WATCH_SAMPLES", "5")  # the last group is cut
    fields = verl_batch()
    mask = fields["response_mask"]
    paid = torch.zeros_like(fields["values"])
    last = fields["attention_mask"][:, 3:].sum(1) - 1
    paid[torch.arange(6), last] = torch.tensor([1.0, 0.0, 0.25, 0.25, 2.0, 0.0])
    del fields["values"]
    fields["token_level_scores"] = fields["token_level_rewards"] = paid
    paid[mask == 0] = torch.nan  # verl leaves anything there
    fields["advantages"] = fields["returns"] = torch.tensor(advantages)[:, None] * mask
    settings = config(adv_estimator=name, norm_adv_by_std_in_grpo=by_std)
    recorder = verl_plugin._recorder(None, settings)
    verl_plugin._record_padded(recorder, 1, data_proto(fields), settings)
    recorder.close()
    found = samples(folder, 1)
    assert len(found) == 5
    traces = [trace for sample in found for trace in Tracer(sample).traces(0)]
    compared = [trace for trace in traces if trace.name == "advantage"]
    assert [trace.recorded for trace in compared] == pytest.approx(advantages[:5])
    assert [trace.result for trace in compared] == pytest.approx(advantages[:5], abs=1e-4)


def test_a_response_is_cut_off_if_it_is_as_long_as_it_may_be_and_has_no_eos() -> None:
    rows = [[5, 6, 7], [5, 6, 2], [5, 2, 0]]
    asked = (rows, [3, 3, 2])
    limited = Node(data={"max_response_length": 3})
    tokenizer = SimpleNamespace(eos_token_id=2)
    assert verl_plugin._truncated(*asked, limited, tokenizer)["truncated"] == [True, False, False]
    assert verl_plugin._truncated(*asked, limited, None)["truncated"] == [True, True, False]
    assert verl_plugin._truncated(*asked, config(), tokenizer) == {}


@needs_verl
def test_the_numbers_of_verl_itself_are_recomputed(folder: Path) -> None:
    module: Any = importlib.import_module(verl_plugin.LEGACY)
    proto = importlib.import_module("verl.protocol").DataProto
    fields = verl_batch()
    del fields["advantages"], fields["returns"]
    data = proto.from_dict(tensors=fields)
    data = module.compute_advantage(data, "gae", gamma=0.9, lam=0.8, config={})
    recorder = verl_plugin._recorder(None, config())
    verl_plugin._record_padded(recorder, 1, data, config())
    recorder.close()
    assert judged(folder, 1) == {"reward": True, "return": True, "whitened": True}


@needs_verl
@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize("trainer", [[], ["--legacy"], ["--estimator", "grpo"]], ids=str)
def test_a_whole_run_of_verl_is_recomputed(trainer: list[str], tmp_path: Path) -> None:
    """verl's own main_ppo on the CPU: Ray, its queue, its workers. Takes minutes."""
    command = "-m benchmarks.verl_ppo tiny --device cpu --steps 2 --watch --out"
    done = subprocess.run(
        [sys.executable, *command.split(), str(tmp_path), *trainer], cwd=ROOT, check=False
    )
    log = tmp_path / "log.txt"
    assert done.returncode == 0, log.read_text("utf-8")[-3000:] if log.exists() else ""
    watched = json.loads((tmp_path / "result.json").read_text("utf-8"))["watched"]
    assert (watched["steps"], watched["responses"]) == (1, 16)
    names = {"reward", "advantage"} if "grpo" in trainer else {"reward", "return", "whitened"}
    assert watched["columns"].keys() == names
    for found in watched["columns"].values():
        assert found["wrong"] == 0
        assert found["worst"] < 1e-5


def test_a_module_is_patched_when_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peer_trainer.py").write_text("ANSWER = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def patch(module: ModuleType) -> None:
        vars(module)["ANSWER"] = 2

    on_import({"peer_trainer": patch})
    assert "peer_trainer" not in sys.modules
    assert importlib.import_module("peer_trainer").ANSWER == 2


def test_other_modules_of_the_same_zip_file_are_not_patched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "peers.zip", "w") as file:
        file.writestr("zipped_trainer.py", "ANSWER = 1\n")
        file.writestr("zipped_other.py", "ANSWER = 1\n")
    monkeypatch.syspath_prepend(tmp_path / "peers.zip")
    patched: list[str] = []
    on_import({"zipped_trainer": lambda module: patched.append(module.__name__)})
    importlib.import_module("zipped_trainer")
    importlib.import_module("zipped_other")
    assert patched == ["zipped_trainer"]
