"""Packed equals padded, fused equals plain, chunked equals unchunked, captured equals eager."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from telescope.algorithms import entropy_from_logits, log_probs_from_logits
from telescope.batch import TokenBatch
from telescope.config import Bins, ModelConfig, RolloutConfig
from telescope.models.fast import packed
from telescope.models.fast.fuse import _concat_columns, fuse, join_weights, joined_linear, unfuse
from telescope.models.forward import policy_forward, value_forward
from telescope.models.load import checkpointing, is_packable, load_critic, load_policy
from telescope.rollout.sampler import TorchSampler
from tests.fakes import EOS, hand_batch
from tests.models.test_families import FAMILIES, write_family

PADDED_ONLY = {"gemma2"}  # soft caps
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="module", params=FAMILIES, ids=str)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(
        write_family(
            request.param, tmp_path_factory.mktemp("family") / request.param.replace(" ", "-")
        )
    )


@pytest.fixture
def packable(family: str) -> str:
    if Path(family).name in PADDED_ONLY:
        pytest.skip("a model that runs padded, by design: what is packed cannot be compared")
    return family


def batch():
    rows = on_device(
        hand_batch([[1] * n + [0] * (11 - n) for n in (11, 3, 7, 1)], prompt=4, seed=3)
    )
    attention = rows["attention_mask"].clone()
    attention[1, :2], attention[2, :3] = 0, 0  # prompts of 4, 2, 1 and 4 tokens
    return rows.with_columns(
        attention_mask=attention, position_ids=(attention.cumsum(1) - 1).clamp(min=0)
    )


def on_device(rows: TokenBatch) -> TokenBatch:
    return TokenBatch({name: rows[name].to(DEVICE) for name in rows}, rows.info)


def gradients(loss: torch.Tensor, model: torch.nn.Module) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def weigh(values: torch.Tensor) -> torch.Tensor:
    """A different weight for each token, so that none can be mistaken for another."""
    mask = batch().mask
    return (
        values.masked_fill(~mask, 0.0)
        * torch.arange(1.0, mask.numel() + 1, device=DEVICE).view(mask.shape)
    ).sum()


def assert_same(mine: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert len(mine) == len(other) > 0
    for a, b in zip(mine, other, strict=True):
        share = 1e-4 if DEVICE.type == "cpu" else 3e-4
        torch.testing.assert_close(
            a, b, rtol=1e-4, atol=share * max(float(b.detach().abs().max()), 1.0)
        )


def test_which_families_are_packed(family: str, caplog: pytest.LogCaptureFixture) -> None:
    packs = Path(family).name not in PADDED_ONLY
    assert is_packable(load_policy(ModelConfig(path=family), DEVICE)) is packs
    assert is_packable(load_critic(ModelConfig(path=family), DEVICE).backbone) is packs
    assert ("padded rows" in caplog.text) is not packs


@pytest.mark.parametrize("entropy", ["value", "gradient"])
def test_policy_packed_equals_padded(packable: str, entropy: str) -> None:
    results = []
    for packs in (True, False):
        model = load_policy(ModelConfig(path=packable), DEVICE)
        model.packable = packs
        out = policy_forward(model, batch(), temperature=0.7, entropy=entropy)
        loss = weigh(out.log_probs) + (weigh(out.entropy) if entropy == "gradient" else 0.0)
        mask = batch().mask
        results.append(
            [out.log_probs[mask].detach(), out.entropy[mask].detach(), *gradients(loss, model)]
        )
    assert_same(*results)


@pytest.mark.parametrize("bins", [None, Bins(7, -1.0, 3.0)], ids=["number", "histogram"])
def test_values_packed_equal_padded(packable: str, bins: Bins | None) -> None:
    results = []
    for packs in (True, False):
        model = load_critic(ModelConfig(path=packable), DEVICE, bins)
        model.head.weight.data = torch.linspace(
            -1, 1, model.head.weight.numel(), device=DEVICE
        ).view_as(model.head.weight)
        model.backbone.packable = packs
        out, mask = value_forward(model, batch()), batch().mask
        loss = weigh(out.values) + out.final.sum()
        if out.logits is not None:
            loss = loss + out.logits[mask].log_softmax(-1)[:, 2].sum()
        said = [] if out.logits is None else [out.logits[mask].detach()]
        results.append(
            [out.values[mask].detach(), out.final.detach(), *said, *gradients(loss, model)]
        )
        assert (out.logits is None) == (bins is None)
    assert_same(*results)


@pytest.mark.parametrize("option", ["gradient_checkpointing", "fused"])
def test_what_saves_memory_or_time_changes_no_gradient(
    packable: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option == "fused":
        pytest.importorskip("triton")
    results = []
    for on in (False, True):
        model = load_policy(
            ModelConfig(
                path=packable, gradient_checkpointing=on and option == "gradient_checkpointing"
            ),
            DEVICE,
        )
        if option == "fused":
            monkeypatch.setattr("telescope.models.fast.fuse._WIDE_NORM", 1)
            (fuse if on else unfuse)(model.base_model)
        with checkpointing(model):
            out = policy_forward(model, batch(), temperature=1.0)
            results.append([out.log_probs.detach(), *gradients(weigh(out.log_probs), model)])
    assert_same(*results)


@pytest.mark.parametrize("bias", [True, False])
def test_joined_layers_are_one_product_with_the_same_gradients(bias: bool) -> None:
    torch.manual_seed(0)
    layers = torch.nn.ModuleDict(
        {
            f"{name}_proj": torch.nn.Linear(4, n, bias=bias)
            for name, n in (("q", 6), ("k", 2), ("v", 2))
        }
    )
    apart, x, weight = (
        copy.deepcopy(layers),
        torch.randn(3, 5, 4, requires_grad=True),
        torch.randn(3, 5, 10),
    )
    join_weights(layers)
    layers.q_proj.joined.weight[7] += 1  # k's second row: the layers' weights are the matrix's
    apart.k_proj.weight.data[1] += 1
    results = []
    for each in (layers, apart):
        out = torch.cat(list(joined_linear(x, list(each.values()))), -1)
        results.append(
            [out.detach(), *torch.autograd.grad((out * weight).sum(), [x, *each.parameters()])]
        )
    assert_same(*results)
    layers["k_proj"].load_state_dict(apart["v_proj"].state_dict())  # copied in place: still joined
    torch.testing.assert_close(
        joined_linear(x.detach(), list(layers.values()))[1], apart["v_proj"](x)
    )
    layers.q_proj.weight.data = torch.zeros(6, 4)  # no longer a part of it
    assert (
        joined_linear(x.detach(), list(layers.values()))[0] == (layers.q_proj.bias if bias else 0)
    ).all()


def test_columns_of_one_matrix_are_not_copied() -> None:
    matrix = torch.randn(3, 8)
    left, right = matrix.chunk(2, 1)
    assert _concat_columns([left, right]).data_ptr() == matrix.data_ptr()
    assert torch.equal(_concat_columns([left, right]), matrix)
    for parts in ([right, left], [left, right.clone()], [left, right[:, :2]]):
        assert torch.equal(_concat_columns(parts), torch.cat(parts, -1))


def test_a_fused_copy_has_weights_of_its_own(tiny_model: Path) -> None:
    pytest.importorskip("triton")
    model = load_policy(ModelConfig(path=str(tiny_model)), DEVICE)
    fuse(model.base_model)
    other = copy.deepcopy(model)
    before = policy_forward(other, batch(), temperature=1.0).log_probs
    for parameter in model.parameters():
        parameter.data.zero_()
    assert torch.equal(policy_forward(other, batch(), temperature=1.0).log_probs, before)


def test_chunks_of_logits_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    head, targets = torch.nn.Linear(8, 30), torch.randint(30, (700,))
    hidden = torch.randn(700, 8, requires_grad=True)
    weights = torch.randn(2, 700)
    logits = head(hidden) / 0.6
    plain = [log_probs_from_logits(logits, targets), entropy_from_logits(logits)]
    monkeypatch.setattr(packed, "_MAX_LOGITS", 1)  # chunks of the smallest size
    ours = list(
        packed.linear_log_probs(hidden, head, targets, temperature=0.6, entropy_gradient=True)
    )
    parameters = [hidden, *head.parameters()]
    for outputs in (plain, ours):
        outputs += torch.autograd.grad((weights * torch.stack(outputs)).sum(), parameters)
    assert_same(ours, plain)


def test_a_batch_without_any_response_token_has_no_gradient_and_no_error(packable: str) -> None:
    model = load_policy(ModelConfig(path=packable), DEVICE)
    empty = on_device(hand_batch([[0, 0], [0, 0]]))
    out = policy_forward(model, empty, temperature=1.0)
    out.log_probs.sum().backward()
    assert out.log_probs.tolist() == [[0, 0], [0, 0]]


PROMPTS = torch.tensor(
    [[0, 0, 5, 6], [3, 4, 5, 6], [0, 7, 8, 9], [0, 0, 0, 7], [0, 0, 9, 4]], device=DEVICE
)


def engine(
    model, *, slots: int = 99, kind: str = "engine", stop: tuple[int, ...] = (EOS,), **settings
):
    config = RolloutConfig(**{"max_response_tokens": 21, **settings})
    if kind == "eager":
        return TorchSampler(model, config, stop=stop, pad=0)
    from telescope.rollout.engine import GraphSampler

    sampler = GraphSampler(model, config, stop=stop, pad=0)
    sampler.capture = False
    sampler._slots_that_fit = lambda length: slots
    return sampler


def same_rollout(one, other) -> None:
    assert torch.equal(one.lengths, other.lengths)
    assert torch.equal(one.responses, other.responses)
    assert torch.equal(one.truncated, other.truncated)
    torch.testing.assert_close(one.log_probs, other.log_probs, atol=1e-4, rtol=1e-3)


def test_the_engine_writes_what_the_eager_sampler_writes(
    packable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("telescope.models.fast.fuse._WIDE_NORM", 1)
    model = load_policy(ModelConfig(path=packable), DEVICE)
    fused = copy.deepcopy(model)
    fuse(fused.base_model)
    eager = engine(model, kind="eager").generate(PROMPTS, (PROMPTS > 0).long(), seed=0, greedy=True)
    ours = engine(fused).generate(PROMPTS, (PROMPTS > 0).long(), seed=0, greedy=True)
    same_rollout(ours, eager)


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_waiting_for_a_slot_changes_no_response(slots: int, tiny_model: Path) -> None:
    pytest.importorskip("triton")
    model = load_policy(ModelConfig(path=str(tiny_model)), DEVICE)
    mask = (PROMPTS > 0).long()
    stop = tuple(range(1, 8))  # so that responses end early, at different steps
    everything = engine(model, stop=stop).generate(PROMPTS, mask, seed=5)
    assert len(set(everything.lengths.tolist())) > 2
    sampler = engine(model, stop=stop, slots=slots)
    same_rollout(sampler.generate(PROMPTS, mask, seed=5), everything)
    fewer = engine(model, stop=stop).generate(PROMPTS[2:], mask[2:], seed=0, greedy=True)
    same_rollout(sampler.generate(PROMPTS[2:], mask[2:], seed=5, greedy=True), fewer)
    assert not torch.equal(sampler.generate(PROMPTS, mask, seed=6).responses, everything.responses)
    some = sampler.generate(PROMPTS[[3, 1]], mask[[3, 1]], seed=5, rows=[3, 1])
    width = some.responses.shape[1]
    assert torch.equal(some.responses, everything.responses[[3, 1], :width])


def test_the_engine_reports_the_log_probs_of_the_training_forward(tiny_model: Path) -> None:
    pytest.importorskip("triton")
    model = load_policy(ModelConfig(path=str(tiny_model)), DEVICE)
    out = engine(model, temperature=0.8, top_k=5, top_p=0.9).generate(
        PROMPTS, (PROMPTS > 0).long(), seed=1
    )
    for row, length in enumerate(out.lengths.tolist()):
        prompt = [i for i in PROMPTS[row].tolist() if i]
        ids = torch.tensor([prompt + out.responses[row, :length].tolist()], device=DEVICE)
        logits = model(input_ids=ids).logits.detach()[:, len(prompt) - 1 : -1] / 0.8
        expected = log_probs_from_logits(logits, ids[:, len(prompt) :])[0]
        torch.testing.assert_close(out.log_probs[row, :length], expected, atol=1e-4, rtol=1e-4)
        rank = (logits[0] > logits[0].gather(1, ids[0, len(prompt) :, None])).sum(1)
        assert (rank < 5).all()  # top_k


def test_where_nothing_can_be_captured_the_eager_sampler_takes_over(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("triton")
    model = load_policy(ModelConfig(path=str(tiny_model)), DEVICE)
    sampler = engine(model)
    sampler._admit = lambda *_: (_ for _ in ()).throw(
        RuntimeError("operation not permitted when stream is capturing")
    )
    mask = (PROMPTS > 0).long()
    for _ in range(2):
        same_rollout(
            sampler.generate(PROMPTS, mask, seed=3),
            engine(model, kind="eager").generate(PROMPTS, mask, seed=3),
        )
    assert caplog.text.count("step by step") == 1


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_captured_equals_step_by_step(
    packable: str, dtype: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_policy(ModelConfig(path=packable, dtype=dtype), DEVICE)
    results = []
    for capture in (False, True):
        sampler = engine(model, stop=tuple(range(1, 8)))
        sampler.capture = capture
        results.append(
            [
                sampler.generate(PROMPTS.repeat(9, 1), (PROMPTS > 0).long().repeat(9, 1), seed=seed)
                for seed in (1, 2)
            ]
        )
    if "step by step" in caplog.text:  # not captured: other draws
        assert "moe" in packable  # whose routing may ask the host
        return
    for one, other in zip(*results, strict=True):
        same_rollout(one, other)


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="CUDA graphs need a GPU")
def test_a_capture_that_fails_leaves_the_process_as_it_was(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_policy(ModelConfig(path=str(tiny_model)), DEVICE)
    sampler, stream = engine(model), torch.cuda.current_stream()
    sampler.capture = True
    own = sampler._draw

    def draw(state, hidden, rows):
        waits_for_the_host = hidden.sum().item()
        return own(state, hidden, rows) if waits_for_the_host else None

    sampler._draw = draw
    mask = (PROMPTS > 0).long()
    same_rollout(
        sampler.generate(PROMPTS, mask, seed=3),
        engine(model, kind="eager").generate(PROMPTS, mask, seed=3),
    )
    assert "step by step" in caplog.text
    assert torch.cuda.current_stream() == stream
    caplog.clear()
    other = engine(model)
    other.capture = True
    same_rollout(
        other.generate(PROMPTS, mask, seed=3), engine(model).generate(PROMPTS, mask, seed=3)
    )
    assert not caplog.text  # what failed before is no hindrance


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="the GPU's attention takes bfloat16 only")
@pytest.mark.parametrize("window", [None, 3])
def test_flash_attention_equals_the_padded_one(window: int | None) -> None:
    torch.manual_seed(0)
    layout = packed.PackedRows([5, 1, 40], DEVICE)
    q, k, v = (
        torch.randn(46, heads, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
        for heads in (6, 2, 2)
    )
    weight = torch.randn(46, 6, 64, device=DEVICE)
    results = []
    for attend in (layout.attend, lambda _, *rest: layout._attend_padded(*rest)):
        out = attend(0, q, k, v, 0.2, window)
        results.append(
            [
                out.float().detach(),
                *(g.float() for g in torch.autograd.grad((out * weight).sum(), (q, k, v))),
            ]
        )
    for ours, plain in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0.05, atol=0.05)
