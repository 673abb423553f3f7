"""The vLLM sampler against the one in process, on the CPU: `make test-vllm`."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from telescope.algorithms import log_probs_from_logits
from telescope.config import Config, load_config
from telescope.errors import TelescopeError
from telescope.models.load import load_policy
from telescope.rollout.sampler import Rollout, TorchSampler, restrict
from telescope.rollout.vllm import Team, VllmSampler
from telescope.trainer import Trainer
from tests.fakes import EOS, tiny_config, write_tiny_model

PROMPTS = torch.tensor([[0, 0, 5, 6], [3, 4, 5, 6], [0, 7, 8, 9]])
MASK = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 1, 1]])
HEAD = 32  # smallest head that vLLM's attention for CPUs has

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None, reason="vLLM is not installed: make test-vllm"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny", hidden=2 * HEAD)


def config(folder: Path, **rollout: float) -> Config:
    settings = {"batch_size": 8, "max_response_tokens": 8, **rollout}
    return load_config(
        None,
        [
            ("model.path", str(folder)),
            ("device", "cpu"),
            *((f"rollout.{k}", str(v)) for k, v in settings.items()),
        ],
    )


def vllm(folder: Path, stop: int = EOS, **rollout: float) -> VllmSampler:
    return VllmSampler(str(folder), config(folder, **rollout), stop=[stop], pad=0, device="cpu")


def model_in(folder: Path):
    return load_policy(config(folder).model, torch.device("cpu"))


@pytest.fixture(scope="module")
def plain(folder: Path) -> VllmSampler:
    return vllm(folder)


def expected_log_probs(model, out: Rollout, temperature: float) -> torch.Tensor:
    ids, mask = (
        torch.cat([PROMPTS, out.responses], 1),
        torch.cat([MASK, torch.ones_like(out.responses)], 1),
    )
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=mask, position_ids=positions).logits.detach()[
        :, PROMPTS.shape[1] - 1 : -1
    ]
    return log_probs_from_logits(logits / temperature, out.responses)


def written(out: Rollout) -> torch.Tensor:
    return torch.arange(out.responses.shape[1]) < out.lengths[:, None]


def assert_same_greedy(sampler: VllmSampler, model) -> None:
    ours = TorchSampler(model, sampler.config.rollout, stop=sampler.stop.tolist(), pad=0).generate(
        PROMPTS, MASK, seed=0, greedy=True
    )
    theirs = sampler.generate(PROMPTS, MASK, seed=0, greedy=True)
    assert torch.equal(ours.responses, theirs.responses)
    assert torch.equal(ours.lengths, theirs.lengths)
    assert torch.equal(ours.truncated, theirs.truncated)
    assert torch.allclose(ours.log_probs, theirs.log_probs, atol=1e-4)


@needs_vllm
def test_greedy_is_the_same_as_in_process_before_and_after_new_weights(folder: Path) -> None:
    sampler, model = vllm(folder), model_in(folder)
    assert_same_greedy(sampler, model)
    before = sampler.generate(PROMPTS, MASK, seed=0, greedy=True)
    for version in (1, 2):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(
                    0.3
                    * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(version))
                )
        sampler.load_weights(model.state_dict().items(), version)
        assert sampler.version == version
        assert_same_greedy(sampler, model)
    assert not torch.equal(
        before.responses, sampler.generate(PROMPTS, MASK, seed=0, greedy=True).responses
    )


@needs_vllm
def test_weights_of_the_version_it_has_are_not_asked_for(plain: VllmSampler) -> None:
    plain.load_weights((pytest.fail("asked for") for _ in range(1)), plain.version)


@needs_vllm
@pytest.mark.parametrize("tied", [True, False])
def test_the_actors_weights_are_all_that_vllm_needs(
    tmp_path: Path, folder: Path, tied: bool
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    from telescope.build import build_actor

    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig.from_pretrained(folder, tie_word_embeddings=tied, initializer_range=0.1)
    )
    made.save_pretrained(tmp_path / "model")
    for file in folder.glob("tokenizer*"):
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    actor = build_actor(config(tmp_path / "model", engine="vllm"))
    assert isinstance(actor.sampler, VllmSampler)
    assert ("lm_head.weight" in dict(actor.weights())) != tied
    with torch.no_grad():
        for parameter in actor.model.parameters():
            parameter.mul_(1.5)
    actor.sampler.load_weights(actor.weights(), 1)
    assert_same_greedy(actor.sampler, actor.model)


@needs_vllm
@pytest.mark.parametrize(
    "settings",
    [{"temperature": 0.5}, {"temperature": 2.0, "top_k": 3}, {"temperature": 0.7, "top_p": 0.6}],
)
def test_log_probs_are_at_the_temperature_and_before_top_k_and_top_p(
    folder: Path, settings: dict[str, float]
) -> None:
    sampler, model = vllm(folder, stop=25, **settings), model_in(folder)
    for seed in range(4):
        out = sampler.generate(PROMPTS, MASK, seed=seed)
        expected = expected_log_probs(model, out, settings["temperature"])
        assert torch.allclose(out.log_probs[written(out)], expected[written(out)], atol=1e-4)
    assert_same_greedy(sampler, model)


@needs_vllm
@pytest.mark.parametrize(
    "settings", [{"temperature": 2.0, "top_k": 3}, {"temperature": 0.7, "top_p": 0.6}]
)
def test_only_tokens_within_top_k_and_top_p_are_drawn(
    folder: Path, settings: dict[str, float]
) -> None:
    rows = 400
    sampler = vllm(folder, max_response_tokens=1, **settings)
    out = sampler.generate(PROMPTS[1:2].repeat(rows, 1), MASK[1:2].repeat(rows, 1), seed=0)
    logits = (
        model_in(folder)(input_ids=PROMPTS[1:2]).logits[:, -1].detach() / settings["temperature"]
    )
    allowed = restrict(
        logits, top_k=int(settings.get("top_k", 0)), top_p=settings.get("top_p", 1.0)
    ).softmax(-1)[0]
    frequency = torch.bincount(out.responses[:, 0], minlength=len(allowed)) / rows
    assert ((frequency - allowed).abs() <= 4 * (allowed * (1 - allowed) / rows).sqrt() + 1e-9).all()


@needs_vllm
def test_sampling_follows_the_distribution(folder: Path) -> None:
    rows = 2000
    out = vllm(folder, max_response_tokens=1).generate(
        PROMPTS[1:2].repeat(rows, 1), MASK[1:2].repeat(rows, 1), seed=0
    )
    p = model_in(folder)(input_ids=PROMPTS[1:2]).logits[0, -1].softmax(-1)
    frequency = torch.bincount(out.responses[:, 0], minlength=p.numel()) / rows
    assert ((frequency - p).abs() <= 4 * (p * (1 - p) / rows).sqrt() + 1e-9).all()


@needs_vllm
def test_a_row_depends_on_seed_and_number_alone(plain: VllmSampler) -> None:
    everything, again, other = (plain.generate(PROMPTS, MASK, seed=seed) for seed in (4, 4, 5))
    assert torch.equal(everything.responses, again.responses)
    assert not torch.equal(everything.responses, other.responses)
    some = plain.generate(PROMPTS[[2, 0]], MASK[[2, 0]], seed=4, rows=[2, 0])
    assert torch.equal(some.responses, everything.responses[[2, 0], : some.responses.shape[1]])


@needs_vllm
def test_a_response_ends_with_its_stop_token_or_is_truncated(plain: VllmSampler) -> None:
    likely = int(plain.generate(PROMPTS, MASK, seed=0, greedy=True).responses[1, 2])
    plain.stop = torch.tensor([likely, -1])
    out = plain.generate(PROMPTS.repeat(4, 1), MASK.repeat(4, 1), seed=0)
    plain.stop = torch.tensor([-1])
    endless = plain.generate(PROMPTS, MASK, seed=0)
    plain.stop = torch.tensor([EOS])
    last = out.responses[torch.arange(len(out.responses)), out.lengths - 1]
    assert torch.equal(out.truncated, last != likely)
    assert out.truncated.any()
    assert not out.truncated.all()
    assert (
        (out.responses == likely).sum(1) == (~out.truncated).long()
    ).all()  # once, and at the end
    assert (out.responses[~written(out)] == 0).all()
    assert (out.log_probs[~written(out)] == 0).all()
    assert endless.lengths.tolist() == [8, 8, 8]
    assert endless.truncated.all()


@needs_vllm
def test_ppo_runs_with_it_and_it_follows_the_actor(tmp_path: Path, folder: Path) -> None:
    trainer = Trainer(
        tiny_config(
            tmp_path, folder, ("rollout.engine", "vllm"), ("steps", "3"), ("actor.lr", "1e-2")
        )
    )
    trainer.fit()
    differences = [
        row["rollout/logprob_diff"] for row in trainer.history() if "rollout/logprob_diff" in row
    ]
    assert len(differences) == 3
    assert max(differences) < 1e-4
    assert trainer.roles.actor.sampler.version == 3


@needs_vllm
def test_it_sleeps_after_a_rollout_and_wakes_for_weights_and_rollouts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, where engines can sleep."""
    sampler, model, calls = vllm(folder), model_in(folder), []
    before = sampler.generate(PROMPTS, MASK, seed=0)
    monkeypatch.setattr(sampler._engine, "sleep", lambda level: calls.append("sleep"))
    monkeypatch.setattr(sampler._engine, "wake_up", lambda: calls.append("wake"))
    sampler.sleeps = True
    for version in (0, 0, 1):
        sampler.load_weights(model.state_dict().items(), version)
        assert torch.equal(sampler.generate(PROMPTS, MASK, seed=0).responses, before.responses)
    assert calls == ["sleep", "wake", "sleep", "wake", "sleep"]


@needs_vllm
def test_a_model_without_kernels_is_refused_in_one_line(tiny_model: Path) -> None:
    with pytest.raises(TelescopeError, match=r"^vLLM cannot run .*head"):
        vllm(tiny_model).generate(PROMPTS, MASK, seed=0)  # heads of 8


def test_a_follower_does_what_the_first_of_its_team_is_asked_until_dismissed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two turns of an environment, the second with fewer rows and other limits."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    shared, done, followed = [], [], []
    first, second = (
        VllmSampler(
            str(folder), config(folder), stop=[EOS], pad=0, device="cpu", team=Team(rank, 2, "h:1")
        )
        for rank in (0, 1)
    )
    monkeypatch.setattr(first, "_share", shared.append)
    monkeypatch.setattr(first, "_answer", lambda *asked: done.append(asked))
    monkeypatch.setattr(first, "_as_rollout", lambda outputs: None)
    monkeypatch.setattr(second, "_share", lambda _: shared.pop(0))
    monkeypatch.setattr(second, "_answer", lambda *asked: followed.append(asked))
    first.generate(PROMPTS, MASK, seed=3)
    first.generate(PROMPTS[[2]], MASK[[2]], seed=3, rows=[2], limits=[5])
    first.dismiss()
    second.follow()
    assert followed == done
    assert shared == []
    everything, some = done
    assert everything[0] == [[5, 6], [3, 4, 5, 6], [7, 8, 9]]
    assert some == ([[7, 8, 9]], [everything[1][2]], [5])  # the row keeps its seed


def test_where_vllm_is_not_installed_the_error_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TelescopeError, match=r"pip install -e '.\[vllm\]'"):
        vllm(folder)


def test_the_in_process_sampler_asks_for_no_weights(folder: Path) -> None:
    sampler = TorchSampler(model_in(folder), config(folder).rollout, stop=[EOS], pad=0)
    sampler.load_weights((pytest.fail("asked for") for _ in range(1)), 7)
    assert math.isfinite(float(sampler.generate(PROMPTS, MASK, seed=0).log_probs.sum()))
