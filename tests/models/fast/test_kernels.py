"""Every kernel against its plain PyTorch twin; without a GPU in Triton's interpreter."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F  # noqa: N812

pytest.importorskip(
    "triton", reason="Triton comes with torch for GPUs, and with the dev extra on Linux"
)
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from telescope.config import ModelConfig
from telescope.models.fast import decode_kernels, kernels
from telescope.models.fast.fuse import unfuse
from telescope.models.fast.packed import _grad, _stats
from telescope.models.forward import policy_forward
from telescope.models.load import load_policy
from tests.fakes import hand_batch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def rand(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 8), (3, 3, 24), (1, 1, 2)])
def test_rotary_and_its_gradient(heads: int, kv_heads: int, dim: int) -> None:
    q, k = (rand(2, 5, h, dim, grad=True) for h in (heads, kv_heads))
    angle = rand(2, 5, dim // 2)
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
    results = []
    for function in (apply_rotary_pos_emb, kernels.rotary):
        out = function(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        weights = [torch.arange(x.numel(), device=DEVICE).view(x.shape).float() for x in out]
        results.append(
            [
                *out,
                *torch.autograd.grad(
                    sum((x * w).sum() for x, w in zip(out, weights, strict=True)), (q, k)
                ),
            ]
        )
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", [(3, 5, 40), (1, 1, 7), (2100, 24)])
def test_norm_and_its_gradient(shape: tuple[int, ...]) -> None:
    x, weight, past_norm = rand(*shape, grad=True), rand(shape[-1], grad=True), rand(*shape)
    plain = F.rms_norm(x, weight.shape, weight, 1e-5)
    ours = kernels.rms_norm(x, weight, 1e-5)
    torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)
    for mine, other in zip(
        torch.autograd.grad((ours * past_norm).sum(), (x, weight)),
        torch.autograd.grad((plain * past_norm).sum(), (x, weight)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("shape", [(3, 5, 40), (2100, 24)])
def test_norm_of_a_sum_and_its_gradient(shape: tuple[int, ...], frozen: bool) -> None:
    x, added = rand(*shape, grad=True), rand(*shape, grad=True)
    weight = rand(shape[-1], grad=not frozen)
    inputs = (x, added) if frozen else (x, added, weight)
    factors = rand(2, *shape)
    results = []
    for total, normed in (
        (x + added, F.rms_norm(x + added, weight.shape, weight, 1e-5)),
        kernels.add_rms_norm(x, added, weight, 1e-5),
    ):
        loss = (torch.stack([total, normed]) * factors).sum()
        results.append([total, normed, *torch.autograd.grad(loss, inputs)])
    for plain, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4)


def test_adapters_of_the_first_layer_learn_although_all_else_is_frozen() -> None:
    """Embeddings and norm are frozen: only what the adapters add has a gradient."""
    x, added, weight = rand(3, 24), rand(3, 24, grad=True), rand(24)
    total, normed = kernels.add_rms_norm(x, added, weight, 1e-5)
    (ours,) = torch.autograd.grad((total + normed).sum(), added)
    plain_total = x + added
    plain = plain_total + F.rms_norm(plain_total, weight.shape, weight, 1e-5)
    (expected,) = torch.autograd.grad(plain.sum(), added)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_adapters_of_keys_alone_learn() -> None:
    q, k = rand(1, 2, 3, 4), rand(1, 2, 3, 4, grad=True)
    angle = rand(1, 3, 2)
    cos, sin = (torch.cat([f(angle)] * 2, -1) for f in (torch.cos, torch.sin))
    factors = rand(1, 2, 3, 4)
    grads = []
    for function in (apply_rotary_pos_emb, kernels.rotary):
        _, turned = function(q, k, cos, sin)
        grads += torch.autograd.grad((turned * factors).sum(), k)
    torch.testing.assert_close(*grads)


def test_adapters_of_the_gated_units_second_half_alone_learn() -> None:
    gate, up = rand(3, 8), rand(3, 8, grad=True)
    factors = rand(3, 8)
    out = kernels.gated_unit(gate, up, gelu=False)
    (grad,) = torch.autograd.grad((out * factors).sum(), up)
    torch.testing.assert_close(grad, factors * F.silu(gate))


def test_the_norm_of_a_sum_rounds_the_sum_as_it_is_kept() -> None:
    half = torch.float16  # Triton's interpreter truncates to bfloat16 instead of rounding
    x, added, weight = rand(4, 64, dtype=half), rand(4, 64, dtype=half), rand(64, dtype=half)
    total, normed = kernels.add_rms_norm(x, added, weight, 1e-5)
    assert torch.equal(total, x + added)
    assert torch.equal(normed, kernels.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("size", [7, 1200])
def test_gated_unit_and_its_gradient(gelu: bool, size: int) -> None:
    both, weight = rand(3, 2 * size, grad=True), rand(3, size)
    gate, up = both.chunk(2, 1)
    plain = (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up
    ours = kernels.gated_unit(gate, up, gelu)
    torch.testing.assert_close(ours, plain)
    for mine, other in zip(
        torch.autograd.grad((ours * weight).sum(), (gate, up)),
        torch.autograd.grad((plain * weight).sum(), (gate, up)),
        strict=True,
    ):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_statistics_and_their_gradient(temperature: float) -> None:
    logits, targets = 3 * rand(5, 5000), torch.randint(5000, (5,), device=DEVICE)
    plain = [x.to(DEVICE) for x in _stats(logits.cpu(), targets.cpu(), temperature)]
    for mine, other in zip(kernels.token_stats(logits, targets, temperature), plain, strict=True):
        torch.testing.assert_close(mine, other)
    d_log, d_entropy = rand(5), rand(5)
    for dtype, tolerance in ((torch.bfloat16, 0.01), (torch.float32, 1e-4)):  # the second in place
        arguments = (dtype, targets, temperature, plain[0], plain[2], d_log, d_entropy)
        expected = _grad(
            logits.cpu(), *(x.cpu() if isinstance(x, torch.Tensor) else x for x in arguments)
        )
        torch.testing.assert_close(
            kernels.token_grad(logits, *arguments).cpu(), expected, atol=1e-6, rtol=tolerance
        )


@pytest.mark.parametrize(
    ("programs", "dim", "dtype", "shape"),
    [
        (1024, 64, torch.bfloat16, (64, 1)),
        (128, 64, torch.bfloat16, (128, 4)),
        (128, 64, torch.float32, (64, 1)),
        (512, 128, torch.bfloat16, (64, 2)),
        (512, 128, torch.float32, (32, 2)),
        (512, 80, torch.float32, (32, 2)),
        (512, 256, torch.float32, (16, 2)),
    ],
)
def test_few_rows_attend_with_more_warps(programs, dim, dtype, shape) -> None:
    assert decode_kernels._attend_shape(programs, dim, dtype) == shape


@pytest.mark.parametrize("shape", [(64, 1), (128, 4), (64, 2)])
@pytest.mark.parametrize("window", [None, 3, 70])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(6, 2, 8), (4, 4, 24)])
def test_attention_over_the_cache(
    heads: int,
    kv_heads: int,
    dim: int,
    window: int | None,
    shape: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode_kernels, "_attend_shape", lambda *_: shape)
    slots, length, layers = 4, 150, 2
    cache = [rand(2, slots, kv_heads, length, dim) for _ in range(layers)]
    place = torch.tensor(
        [length, slots, *(half.data_ptr() for tensor in cache for half in tensor)], device=DEVICE
    )
    slot, position = (
        torch.tensor([2, 0, 3], device=DEVICE),
        torch.tensor([0, 5, 149], device=DEVICE),
    )
    q, k, v = rand(3, heads, dim), rand(3, kv_heads, dim), rand(3, kv_heads, dim)
    before = [tensor.clone() for tensor in cache]
    out = decode_kernels.attend_cache(q, k, v, place, 1, slot, position, 0.3, window)
    for row in range(3):
        end = int(position[row])
        before[1][0, slot[row], :, end], before[1][1, slot[row], :, end] = k[row], v[row]
        first = 0 if window is None else max(end - window + 1, 0)
        keys, values = before[1][:, slot[row], :, first : end + 1]
        expected = F.scaled_dot_product_attention(
            q[row][:, None], keys, values, scale=0.3, enable_gqa=True
        )[:, 0]
        torch.testing.assert_close(out[row], expected, rtol=1e-4, atol=1e-5)
    # The cache has the new token, and is unchanged elsewhere.
    assert all(torch.equal(mine, other) for mine, other in zip(cache, before, strict=True))


def test_writing_into_the_cache() -> None:
    cache = torch.zeros(2, 3, 2, 6, 4, device=DEVICE)
    place = torch.tensor([6, 3, cache[0].data_ptr(), cache[1].data_ptr()], device=DEVICE)
    k, v = rand(2, 2, 4), rand(2, 2, 4)
    decode_kernels.write_cache(
        k, v, place, 0, torch.tensor([2, 0], device=DEVICE), torch.tensor([5, 1], device=DEVICE)
    )
    expected = torch.zeros_like(cache)
    expected[0, 2, :, 5] = k[0]
    expected[1, 2, :, 5] = v[0]
    expected[0, 0, :, 1] = k[1]
    expected[1, 0, :, 1] = v[1]
    assert torch.equal(cache, expected)


def draw(
    logits: torch.Tensor,
    *,
    seed: int = 0,
    step: int = 0,
    allowed: torch.Tensor | None = None,
    noise: float = 1.0,
    alive: int = 1,
):
    rows = len(logits)
    state = {
        name: torch.full((rows,), value, device=DEVICE)
        for name, value in (("token", -5), ("position", 9), ("step", step))
    }
    state |= {
        "request": torch.arange(rows, device=DEVICE),
        "alive": torch.full((rows,), alive, dtype=torch.int32, device=DEVICE),
    }
    responses, log_probs = (
        torch.full((rows, 4), -1, device=DEVICE),
        torch.zeros(rows, 4, device=DEVICE),
    )
    ended, stop = (
        torch.zeros(rows, dtype=torch.int32, device=DEVICE),
        torch.tensor([2, -1], device=DEVICE),
    )
    decode_kernels.sample_tokens(
        logits,
        logits if allowed is None else allowed,
        number=state["request"] + 7,
        **state,
        responses=responses,
        log_probs=log_probs,
        ended=ended,
        stop=stop,
        seed=torch.tensor([seed], device=DEVICE),
        noise=torch.tensor([noise], device=DEVICE),
        temperature=0.5,
    )
    return state, responses, log_probs, ended


def test_draws_follow_the_distribution_and_report_their_log_prob() -> None:
    rows = 3000 if DEVICE == "cuda" else 800  # on a CPU each row is interpreted
    logits = torch.tensor([0.0, 0.5, -0.5, 1.0, -3.0], device=DEVICE).expand(rows, 5).contiguous()
    _, responses, log_probs, _ = draw(logits)
    p = (logits[0] / 0.5).softmax(-1)
    frequency = torch.bincount(responses[:, 0], minlength=5) / rows
    assert ((frequency - p).abs() <= 4 * (p * (1 - p) / rows).sqrt()).all()
    torch.testing.assert_close(log_probs[:, 0], p.log()[responses[:, 0]])


def test_a_draw_depends_on_seed_step_and_number_alone() -> None:
    logits = rand(40, 3000)
    one = draw(logits)[1][:, 0]
    assert torch.equal(one, draw(logits)[1][:, 0])
    assert not torch.equal(one, draw(logits, seed=1)[1][:, 0])
    assert not torch.equal(one, draw(logits, step=1)[1][:, 1])
    same = draw(logits[:1].expand(40, -1).contiguous())[1][:, 0]
    assert len(set(same.tolist())) > 20  # rows have noise of their own


def test_without_noise_the_likeliest_token_is_taken() -> None:
    logits = rand(6, 3000)
    assert torch.equal(draw(logits, noise=0.0)[1][:, 0], logits.argmax(-1))


@pytest.mark.parametrize("vocabulary", [1, 1000, 4096, 9000])
def test_a_vocabulary_of_any_size_is_seen_to_its_end(vocabulary: int) -> None:
    logits = rand(3, vocabulary)
    logits[1, -1] = 9.0
    _, responses, log_probs, _ = draw(logits, noise=0.0)
    assert torch.equal(responses[:, 0], logits.argmax(-1))
    expected = (logits / 0.5).log_softmax(-1).amax(-1)
    torch.testing.assert_close(log_probs[:, 0], expected, rtol=1e-5, atol=1e-5)


def test_draws_from_a_large_vocabulary_follow_the_distribution() -> None:
    """Four tokens share a call of the random number generator; all are equally likely."""
    rows = 3000 if DEVICE == "cuda" else 400
    vocabulary = 5000
    token = draw(torch.zeros(rows, vocabulary, device=DEVICE))[1][:, 0]
    quarters = torch.bincount(token // 1024, minlength=5)[:5] / rows
    expected = torch.tensor([1024, 1024, 1024, 1024, 904], device=DEVICE) / vocabulary
    assert ((quarters - expected).abs() <= 4 * (expected * (1 - expected) / rows).sqrt()).all()


def test_only_allowed_tokens_are_drawn_but_the_log_prob_is_of_all() -> None:
    logits = rand(30, 50)
    allowed = logits.masked_fill(torch.arange(50, device=DEVICE) != 7, -torch.inf)
    _, responses, log_probs, _ = draw(logits, allowed=allowed)
    assert (responses[:, 0] == 7).all()
    torch.testing.assert_close(log_probs[:, 0], (logits / 0.5).log_softmax(-1)[:, 7])


def test_a_row_moves_on_until_a_stop_token_or_the_limit() -> None:
    only = torch.full((1, 5), -torch.inf, device=DEVICE)
    stop, other = only.clone(), only.clone()
    stop[0, 2], other[0, 3] = 0, 0
    state, responses, _, ended = draw(other)
    assert (
        int(state["token"]),
        int(state["position"]),
        int(state["step"]),
        int(state["alive"]),
        int(ended),
    ) == (3, 10, 1, 1, 0)
    assert responses.tolist() == [[3, -1, -1, -1]]
    state, _, _, ended = draw(stop)
    assert (int(state["alive"]), int(ended), int(state["position"])) == (0, 1, 9)
    state, _, _, ended = draw(other, step=3)
    assert (int(state["alive"]), int(ended)) == (0, 0)
    state, responses, _, _ = draw(other, alive=0)
    assert (int(state["step"]), responses.tolist()) == (0, [[-1] * 4])


@pytest.mark.parametrize("gelu", [False, True])
def test_compiling_ahead_launches_every_kernel(gelu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = set()

    class Counted:
        def __init__(self, kernel, name: str) -> None:
            self.kernel = kernel
            self.name = name

        def __getitem__(self, grid):
            launched.add(self.name)
            return self.kernel[grid]

    every_kernel = [
        (module, name)
        for module in (kernels, decode_kernels)
        for name in vars(module)
        if name.endswith("_kernel")
    ]
    for module, name in every_kernel:
        monkeypatch.setattr(module, name, Counted(getattr(module, name), name))
    monkeypatch.setattr(kernels, "FEW_PROGRAMS", 6)  # interpreted, 256 take seconds
    # The interpreter is not made for threads.
    monkeypatch.setattr(kernels, "ThreadPoolExecutor", lambda _: ThreadPoolExecutor(1))
    shape = {"heads": 4, "kv_heads": 2, "dim": 16, "hidden": 64, "width": 32, "vocabulary": 64}
    kernels.compile_ahead(**shape, gelu=gelu, dtype=torch.float32, device=torch.device(DEVICE))
    assert launched == {name for _, name in every_kernel}
    assert len(launched) == 10


# ---- at the sizes of real models, in bfloat16: `pytest -m gpu tests/models/fast/test_kernels.py`

on_gpu = pytest.mark.skipif(DEVICE != "cuda", reason="sizes that take minutes in the interpreter")


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """How far apart, relative to the exact result."""
    found, exact = found.detach().double(), exact.detach().double()
    return float((found - exact).norm() / exact.norm())


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(9001, 896), (513, 1536), (3, 3584), (1, 8192)])
def test_norms_of_real_models(rows: int, width: int, added: bool) -> None:
    bf16 = torch.bfloat16
    x, other, past_sum, past_norm = rand(4, rows, width, dtype=bf16)
    weight = rand(width, dtype=bf16, grad=True)
    inputs = [part.clone().requires_grad_() for part in ((x, other) if added else (x,))]
    if added:
        total, normed = kernels.add_rms_norm(*inputs, weight, 1e-6)
        assert torch.equal(total, x + other)
        loss = (total * past_sum + normed * past_norm).sum()
    else:
        normed = kernels.rms_norm(*inputs, weight, 1e-6)
        loss = (normed * past_norm).sum()
    found = torch.autograd.grad(loss, [*inputs, weight])

    exact_x = (x + other if added else x).double().requires_grad_()
    exact_weight = weight.detach().double().requires_grad_()
    exact = F.rms_norm(exact_x, (width,), exact_weight, 1e-6)
    loss = (exact * past_norm).sum() + ((exact_x * past_sum).sum() if added else 0.0)
    d_x, d_weight = torch.autograd.grad(loss, [exact_x, exact_weight])
    assert error(normed, exact) < 4e-3
    for gradient, expected in zip(found, [*[d_x] * len(inputs), d_weight], strict=True):
        assert error(gradient, expected) < 4e-3


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim"), [(14, 2, 64), (12, 2, 128), (32, 8, 80), (4, 1, 256)]
)
@pytest.mark.parametrize("rows", [3, 300])
def test_attention_over_the_caches_of_real_models(
    rows: int, heads: int, kv_heads: int, dim: int, dtype: torch.dtype
) -> None:
    length = 333
    cache = rand(2, rows, kv_heads, length, dim, dtype=dtype)
    place = torch.tensor([length, rows, cache[0].data_ptr(), cache[1].data_ptr()], device=DEVICE)
    slots = torch.randperm(rows, device=DEVICE)
    positions = torch.randint(length, (rows,), device=DEVICE)
    q = rand(rows, heads, dim, dtype=dtype)
    k, v = rand(2, rows, kv_heads, dim, dtype=dtype)
    out = decode_kernels.attend_cache(q, k, v, place, 0, slots, positions, dim**-0.5, None)
    keys, values = cache.double()[:, slots]  # both have the new token already
    seen = torch.arange(length, device=DEVICE) <= positions[:, None]  # [rows, length]
    exact = F.scaled_dot_product_attention(
        q.double()[:, :, None], keys, values, attn_mask=seen[:, None, None], enable_gqa=True
    )[:, :, 0]
    assert error(out, exact) < (1e-5 if dtype is torch.float32 else 8e-3)


@pytest.mark.gpu
@on_gpu
def test_fused_layers_are_as_near_to_float32_as_transformers_own(tmp_path: Path) -> None:
    """Log-probs and gradients of two layers of Qwen2.5-0.5B's sizes."""
    sizes = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 14, "num_key_value_heads": 2}
    Qwen2ForCausalLM(Qwen2Config(**sizes, **heads, vocab_size=5000)).save_pretrained(tmp_path)
    batch = hand_batch([[1] * n + [0] * (300 - n) for n in (300, 7, 120, 1)], prompt=40)
    batch = batch.to(torch.device(DEVICE))
    factors = rand(*batch.mask.shape)

    def outputs(dtype: str, *, fused: bool) -> dict[str, list[torch.Tensor]]:
        model = load_policy(ModelConfig(path=str(tmp_path), dtype=dtype), torch.device(DEVICE))
        assert model.packable
        if not fused:
            unfuse(model.base_model)
            model.packable = False
        log_probs = policy_forward(model, batch, temperature=1.0).log_probs
        (log_probs * factors * batch.mask).sum().backward()
        norms, rest = [], []
        for name, weight in model.named_parameters():
            (norms if "norm" in name else rest).append(weight.grad.flatten())
        return {"log-probs": [log_probs[batch.mask]], "norms": norms, "rest": rest}

    exact, theirs, ours = (
        outputs("float32", fused=False),
        outputs("bfloat16", fused=False),
        outputs("bfloat16", fused=True),
    )
    for name, expected in exact.items():
        own, other = (error(torch.cat(of[name]), torch.cat(expected)) for of in (ours, theirs))
        assert own < 1.2 * other + 1e-3, (name, own, other)
