"""A CUDA graph computes what its forward and backward passes do.

Without a GPU the same passes run uncaptured.
"""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from telescope.batch import TokenBatch
from telescope.config import ModelConfig, OptimizerConfig
from telescope.models.fast import capture
from telescope.models.fast.capture import (
    GraphMemory,
    GraphRunner,
    PaddedRows,
    padded_size,
    takes_embeddings,
)
from telescope.models.fast.packed import PackedRows
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import load_critic, load_policy
from telescope.roles.learner import Learner
from tests.fakes import hand_batch, write_tiny_model
from tests.models.test_families import FAMILIES, write_family

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPE = "bfloat16" if GPU else "float32"
PADDED_ONLY = {"gemma2"}  # soft caps


@pytest.fixture(autouse=True)
def capture_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "CAPTURE_AFTER", 1)


def new_runner() -> GraphRunner:
    return GraphRunner(GraphMemory(), capture=GPU)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))


def settings(path: str) -> ModelConfig:
    return ModelConfig(path=path, dtype=DTYPE)


def batch(lengths: tuple[int, ...], seed: int = 0) -> TokenBatch:
    rows = hand_batch([[1] * n + [0] * (11 - n) for n in lengths], prompt=4, seed=seed)
    return TokenBatch({name: rows[name].to(DEVICE) for name in rows}, rows.info)


def policy_gradients(policy, rows: TokenBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    out = policy_forward(policy, rows, temperature=0.7, entropy="gradient")
    numbers = torch.arange(1.0, rows.mask.numel() + 1, device=DEVICE)
    weight = numbers.view(rows.mask.shape) * rows.mask
    loss = (weight * (out.log_probs + out.entropy)).sum()
    return out.log_probs.detach().clone(), gradients(loss, policy)


def value_gradients(critic, rows: TokenBatch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    out = value_forward(critic, rows)
    loss = (out.values * rows.mask).sum() + out.final.sum()
    return out.values.detach().clone(), gradients(loss, critic)


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def assert_same(mine, other) -> None:
    (out, grads), (plain_out, plain_grads) = mine, other
    share = 0.02 if GPU else 1e-5
    assert len(grads) == len(plain_grads) > 0
    for a, b in zip([out, *grads], [plain_out, *plain_grads], strict=True):
        torch.testing.assert_close(a, b, rtol=share, atol=share * max(float(b.abs().max()), 1e-6))


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 100, 6_300, 65_536])
def test_sizes_are_few_and_hardly_larger(count: int) -> None:
    assert count <= padded_size(count) <= count + count // 8
    assert padded_size(padded_size(count)) == padded_size(count)
    assert len({padded_size(n) for n in range(4096, 8193)}) == 9


@pytest.mark.parametrize("lengths", [(5,), (3, 9, 1), (40,) * 33, (1, 200, 7, 7, 7)])
def test_padding_is_rows_of_its_own_behind_the_others(lengths: tuple[int, ...]) -> None:
    rows = PackedRows(lengths, torch.device("cpu"))
    padded = PaddedRows(rows)
    assert padded.lengths[: len(lengths)].tolist() == list(lengths)
    assert padded.total == padded_size(rows.total)
    assert len(padded.lengths) == padded_size(len(padded.lengths))
    assert padded.longest == padded_size(max(lengths))
    # No position that no real row has: the model may have no embedding of it.
    assert padded.lengths.max() == max(lengths)
    assert padded.positions[: rows.total].equal(rows.positions)
    assert np.diff(padded.bounds.numpy()).tolist() == padded.lengths.tolist()


@pytest.mark.parametrize("name", [f for f in FAMILIES if f not in PADDED_ONLY], ids=str)
def test_a_graph_computes_what_its_passes_do(name: str, tmp_path: Path) -> None:
    path = str(write_family(name, tmp_path / name.replace(" ", "-")))
    policy = load_policy(settings(path), DEVICE)
    critic = load_critic(settings(path), DEVICE, head_seed=1)
    rows = batch((11, 3, 7, 1, 2))
    for backbone, find, owner in (
        (policy.base_model, policy_gradients, policy),
        (critic.backbone, value_gradients, critic),
    ):
        backbone.graph_runner = None
        plain = find(owner, rows)
        backbone.graph_runner = new_runner()
        for _ in range(3):
            assert_same(find(owner, rows), plain)
        # The routing of a mixture of experts may wait for the host, which cannot be captured.
        if backbone.graph_runner.works or not GPU or "moe" not in name:
            assert len(backbone.graph_runner.graphs) == 1


def test_a_graph_serves_other_rows_of_like_sizes(model: str) -> None:
    policy = load_policy(settings(model), DEVICE)
    runner = new_runner()
    for seed, lengths in enumerate([(11, 3, 7, 1), (11, 4, 5, 2), (11, 1, 1, 9)]):
        rows = batch(lengths, seed)
        policy.base_model.graph_runner = None
        plain = policy_gradients(policy, rows)
        policy.base_model.graph_runner = runner
        assert_same(policy_gradients(policy, rows), plain)
    assert len(runner.graphs) == 1


def test_without_a_gradient_nothing_is_captured(model: str) -> None:
    policy = load_policy(settings(model), DEVICE)
    policy.base_model.graph_runner = runner = new_runner()
    with torch.no_grad():
        policy_forward(policy, batch((11, 3, 7, 1)), temperature=1.0)
    assert not runner.graphs


@pytest.mark.parametrize(
    ("free", "idle", "before", "fits"),
    [
        (40, 0, 0, True),
        (39, 0, 0, False),
        (50, 10, 0, True),
        (49, 10, 0, False),
        (60, 0, 45, True),
        (59, 0, 45, False),
    ],
)
def test_graphs_leave_room_for_what_steps_took(
    free: int, idle: int, before: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step takes 30 at its peak of 35 (40 if an earlier peak was 45); torch has cached 20.

    Twice that must be free: for the graph and for other passes.
    """
    answers = {
        "mem_get_info": (free, 100),
        "memory_reserved": 25,
        "memory_allocated": 5,
        "max_memory_allocated": 35,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    memory = GraphMemory()
    memory.idle = idle
    memory.peak = before
    assert memory.has_room(DEVICE) is fits


def test_where_there_is_no_room_nothing_is_captured_and_the_log_says_so(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = load_policy(settings(model), DEVICE)
    monkeypatch.setattr(GraphMemory, "has_room", lambda *_: False)
    policy.base_model.graph_runner = runner = GraphRunner(GraphMemory())
    for _ in range(2):
        policy_gradients(policy, batch((5, 5)))
    assert not runner.graphs
    warning = "without CUDA graphs, which are slower if small (not enough memory is free)"
    assert caplog.text.count(warning) == 1


def test_weights_change_in_place_and_graphs_see_it(model: str) -> None:
    policy = load_policy(settings(model), DEVICE)
    policy.base_model.graph_runner = new_runner()
    policy_gradients(policy, batch((5, 5)))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(1.25)
    mine = policy_gradients(policy, batch((5, 5)))
    runner = policy.base_model.graph_runner
    policy.base_model.graph_runner = None
    assert_same(mine, policy_gradients(policy, batch((5, 5))))
    (graph,) = runner.graphs.values()
    for weight in policy.parameters():  # elsewhere: what was captured would read the old ones
        weight.data = weight.data.clone()
    assert not graph.is_bound()
    policy.base_model.graph_runner = runner
    policy_gradients(policy, batch((5, 5)))
    assert [g for g in runner.graphs.values()] != [graph]


def test_a_size_is_captured_when_it_has_come_up_often_enough(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "CAPTURE_AFTER", 3)
    policy = load_policy(settings(model), DEVICE)
    policy.base_model.graph_runner = runner = new_runner()
    found = []
    for _ in range(4):
        policy_gradients(policy, batch((5, 5)))
        found.append(len(runner.graphs))
    assert found == [0, 0, 1, 1]
    monkeypatch.setattr(capture, "MAX_WORK", 1.0)
    before = runner.memory.forwards
    policy_gradients(policy, batch((5, 5)))
    assert runner.memory.forwards == before  # too large: the graph is not used


def test_a_copy_of_the_model_has_its_own_graphs_in_the_same_memory(model: str) -> None:
    policy = load_policy(settings(model), DEVICE)
    policy.base_model.graph_runner = new_runner()
    policy_gradients(policy, batch((5, 5)))
    twin = copy.deepcopy(policy)
    assert len(policy.base_model.graph_runner.graphs) == 1
    assert twin.base_model.graph_runner.graphs == {}
    assert twin.base_model.graph_runner.memory is policy.base_model.graph_runner.memory
    assert twin.graph_memory is policy.graph_memory


def test_actor_and_critic_share_the_memory_of_the_device(model: str) -> None:
    policy = load_policy(settings(model), DEVICE)
    for own_files in (False, True):
        changed = {"critic_path": model + "/."} if own_files else {}
        config = settings(model).model_copy(update=changed)
        critic = load_critic(config, DEVICE, policy=policy)
        runner = getattr(critic.backbone, "graph_runner", None)
        assert (runner is not None) is GPU
        if runner is not None:
            assert runner.memory is policy.graph_memory


def test_a_forward_between_a_forward_and_its_backward_is_refused(model: str) -> None:
    policy = load_policy(settings(model), DEVICE)
    policy.base_model.graph_runner = new_runner()
    for lengths in ((5, 5), (9, 9)):
        policy_gradients(policy, batch(lengths))
    first = policy_forward(policy, batch((5, 5)), temperature=1.0).log_probs.sum()
    policy_forward(policy, batch((9, 9)), temperature=1.0)
    with pytest.raises(RuntimeError, match="followed by another before its backward"):
        first.backward()


def test_what_cannot_be_captured_runs_as_before_and_says_so(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    policy = load_policy(settings(model), DEVICE)
    policy.base_model.graph_runner = None
    plain = policy_gradients(policy, batch((5, 5)))

    def refuse(*_, **__):
        raise RuntimeError("operation not permitted when stream is capturing\nand so on")

    monkeypatch.setattr(capture, "CapturedPass", refuse)
    policy.base_model.graph_runner = runner = new_runner()
    assert_same(policy_gradients(policy, batch((5, 5))), plain)
    assert not runner.works
    reason = "operation not permitted when stream is capturing"
    assert f"without CUDA graphs, which are slower if small ({reason})" in caplog.text


def test_a_model_that_looks_at_the_tokens_themselves_is_told_apart(
    model: str, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = load_policy(settings(model), DEVICE).base_model
    assert takes_embeddings(backbone)
    own = type(backbone).forward

    def forward(input_ids=None, inputs_embeds=None, **more):
        out = own(backbone, input_ids=input_ids, inputs_embeds=inputs_embeds, **more)
        if input_ids is not None:
            out.last_hidden_state = out.last_hidden_state + input_ids[..., None]
        return out

    backbone.forward = forward
    assert not takes_embeddings(backbone)
    assert "LlamaModel looks at the tokens themselves" in caplog.text
    backbone.forward = lambda **_: 1 / 0
    assert not takes_embeddings(backbone)


def test_only_small_bfloat16_on_a_gpu_has_graphs(model: str) -> None:
    assert hasattr(load_policy(settings(model), DEVICE).base_model, "graph_runner") is GPU
    assert hasattr(load_critic(settings(model), DEVICE).backbone, "graph_runner") is GPU
    for other in ({"dtype": "float32"}, {"cuda_graphs": False}, {"gradient_checkpointing": True}):
        assert not hasattr(
            load_policy(settings(model).model_copy(update=other), DEVICE).base_model, "graph_runner"
        )


def test_micro_batches_add_up(model: str) -> None:
    """All graphs leave their gradients in the same memory.

    Each is added to the masters' before the next.
    """

    def masters_gradients(runner: GraphRunner | None) -> list[torch.Tensor]:
        policy = load_policy(ModelConfig(path=model, dtype="bfloat16"), DEVICE)
        policy.base_model.graph_runner = runner
        learner = Learner(
            policy, OptimizerConfig(micro_batch_tokens=32), total_updates=1, seed=0, padded=False
        )
        rows = batch((11, 3, 7, 1, 2, 9))

        def loss(some: TokenBatch, _) -> torch.Tensor:
            return (policy_forward(policy, some, temperature=1.0).log_probs * some.mask).sum()

        learner.backward(rows, loss)
        return [master.grad for master in learner.masters if master.grad is not None]

    runner = new_runner()
    for mine, plain in zip(masters_gradients(runner), masters_gradients(None), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0.02, atol=0.02 * float(plain.abs().max()))
    assert len(runner.graphs) > 1
