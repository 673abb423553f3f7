from __future__ import annotations

from pathlib import Path

import pytest
import torch

from telescope.algorithms import log_probs_from_logits
from telescope.config import ModelConfig, RolloutConfig
from telescope.models.load import load_policy
from telescope.rollout.sampler import TorchSampler, restrict, uniforms
from tests.fakes import EOS

PROMPTS = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6], [0, 7, 8, 9]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])


@pytest.fixture(scope="module")
def model(tiny_model: Path):
    return load_policy(ModelConfig(path=str(tiny_model)), torch.device("cpu"))


def sampler(model, *, stop: list[int] | None = None, pad: int = 0, **settings) -> TorchSampler:
    return TorchSampler(
        model, RolloutConfig(**{"max_response_tokens": 8, **settings}), stop=stop or [EOS], pad=pad
    )


def test_the_same_seed_gives_the_same_responses(model) -> None:
    first, again, other = (sampler(model).generate(PROMPTS, MASK, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.responses, again.responses)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.responses, other.responses)


def test_greedy_is_the_same_as_transformers(model) -> None:
    ours = sampler(model, stop=[25]).generate(PROMPTS, MASK, seed=0, greedy=True).responses
    theirs = model.generate(
        input_ids=PROMPTS,
        attention_mask=MASK,
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=25,
        pad_token_id=0,
    )[:, 4:]
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_reported_log_probs_are_those_of_a_full_forward(model, temperature: float) -> None:
    out = sampler(model, stop=[25], temperature=temperature).generate(PROMPTS, MASK, seed=3)
    ids = torch.cat([PROMPTS, out.responses], 1)
    mask = torch.cat([MASK, torch.ones_like(out.responses)], 1)
    logits = (
        model(
            input_ids=ids, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)
        ).logits.detach()[:, 3:-1]
        / temperature
    )
    written = torch.arange(out.responses.shape[1]) < out.lengths[:, None]
    expected = log_probs_from_logits(logits, out.responses)
    assert torch.allclose(out.log_probs[written], expected[written], atol=1e-5)


def test_a_response_ends_with_its_eos_and_is_not_truncated(model) -> None:
    everything = list(range(26))
    out = sampler(model, stop=everything).generate(PROMPTS, MASK, seed=0)
    assert out.lengths.tolist() == [1, 1, 1]
    assert out.truncated.tolist() == [False] * 3
    assert out.responses.shape == (3, 1)


def test_a_response_without_eos_is_truncated_at_the_limit(model) -> None:
    out = sampler(model, stop=[99], max_response_tokens=5).generate(PROMPTS, MASK, seed=0)
    assert out.lengths.tolist() == [5, 5, 5]
    assert out.truncated.tolist() == [True] * 3


def test_after_eos_there_is_only_padding_and_log_prob_zero(model) -> None:
    out = sampler(model, stop=list(range(2, 14)), pad=25).generate(
        PROMPTS.repeat(8, 1), MASK.repeat(8, 1), seed=0
    )
    beyond = torch.arange(out.responses.shape[1]) >= out.lengths[:, None]
    assert beyond.any()
    assert (out.responses[beyond] == 25).all()
    assert (out.log_probs[beyond] == 0).all()


def test_top_k_keeps_the_k_likeliest() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    assert restrict(logits, top_k=2, top_p=1.0).isfinite().tolist() == [[True, True, False, False]]


@pytest.mark.parametrize(("top_p", "kept"), [(0.4, 1), (0.5, 1), (0.6, 2), (0.81, 3), (1.0, 4)])
def test_top_p_keeps_the_smallest_set_with_that_much_probability(top_p: float, kept: int) -> None:
    logits = torch.log(torch.tensor([[0.15, 0.5, 0.05, 0.3]]))
    allowed = restrict(logits, top_k=0, top_p=top_p).isfinite()
    assert int(allowed.sum()) == kept
    assert allowed[0, 1]


def test_sampling_follows_the_distribution(model) -> None:
    """10,000 draws of one token: frequencies within four standard errors of the model's probabilities."""
    rows = 10_000
    out = sampler(model, max_response_tokens=1).generate(
        PROMPTS[1:2].repeat(rows, 1), MASK[1:2].repeat(rows, 1), seed=0
    )
    p = model(input_ids=PROMPTS[1:2]).logits[0, -1].softmax(-1)
    frequency = torch.bincount(out.responses[:, 0], minlength=p.numel()) / rows
    assert ((frequency - p).abs() <= 4 * (p * (1 - p) / rows).sqrt() + 1e-9).all()


def test_a_row_is_sampled_the_same_whichever_rows_are_beside_it(model) -> None:
    everything = sampler(model, stop=[25]).generate(PROMPTS, MASK, seed=4)
    some = sampler(model, stop=[25]).generate(PROMPTS[[2, 0]], MASK[[2, 0]], seed=4, rows=[2, 0])
    assert torch.equal(some.responses, everything.responses[[2, 0], : some.responses.shape[1]])


def test_uniform_numbers_are_uniform_and_differ_by_seed_row_and_place() -> None:
    numbers = uniforms(3, range(400), 50)
    assert numbers.shape == (400, 50)
    assert 0 <= float(numbers.min()) < float(numbers.max()) < 1
    assert len(numbers.unique()) == numbers.numel()
    assert (
        torch.histc(numbers, 10, 0, 1).sub(2000).abs().max() < 200
    )  # within 4.5 standard deviations
    assert abs(float(torch.corrcoef(torch.stack([numbers[:, 0], numbers[:, 1]]))[0, 1])) < 0.2
    assert abs(float(torch.corrcoef(torch.stack([numbers[0], numbers[1]]))[0, 1])) < 0.5
    assert torch.equal(uniforms(3, [7], 50)[0], numbers[7])
    assert not torch.equal(uniforms(4, range(400), 50), numbers)
