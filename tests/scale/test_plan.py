"""The plan: sizes by hand, estimates against measurements, and the recipes and tables that use it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from telescope import commands as cli
from telescope.config import load_config
from telescope.errors import TelescopeError
from telescope.scale.plan import memory as plan_memory
from telescope.scale.plan.job import Job, Rates, all_gpus
from telescope.scale.plan.memory import (
    MAX_LOGITS,
    MAX_WORK,
    Memory,
    is_captured,
    logits_at_once,
    memories,
    memory_of,
)
from telescope.scale.plan.sampling import (
    LAUNCH,
    VLLM_KEPT,
    VLLM_ROWS,
    sampled_rows,
)
from telescope.scale.plan.shapes import GIB, NO_CRITIC, SHAPES, Shape, read_shape
from telescope.scale.plan.times import Network, Seconds, networks, seconds_of
from tests import ROOT

# 144 weights a layer, 40 a table
TINY = Shape(
    hidden=4, layers=2, heads=2, kv_heads=1, head_dim=2, intermediate=8, vocabulary=10, tied=False
)


def network_of(one: Job) -> Network:
    return networks(one)["trains"]


def job(
    shape: str | Shape,
    gpus: int = 1,
    *,
    rows: int = 256,
    prompt: int = 20,
    response: int = 128,
    rates: Rates | None = None,
    **settings: str,
):
    given = {"model.dtype": "bfloat16", "rollout.batch_size": str(rows)} | {
        key.replace("__", "."): value for key, value in settings.items()
    }
    shape = shape if isinstance(shape, Shape) else SHAPES[shape]
    return Job(
        load_config(None, list(given.items())),
        gpus,
        shape,
        shape,
        prompt,
        response,
        rates or Rates(gib=139),
    )


def micro(tokens: int, checkpointing: bool = False) -> dict[str, str]:
    return {
        "actor__micro_batch_tokens": str(tokens),
        "critic__micro_batch_tokens": str(tokens),
        "model__gradient_checkpointing": str(checkpointing).lower(),
    }


EAGER = {"model__cuda_graphs": "false"}


def times(of: Job) -> Seconds:
    return seconds_of(of)


# ---- sizes


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("135M", 0.1345),
        ("0.5B", 0.494),
        ("1.5B", 1.5437),
        ("7B", 7.6156),
        ("8B", 8.0303),
        ("70B", 70.5537),
    ],
)
def test_shapes_have_the_weights_of_the_models_they_are_named_after(name: str, billions: float):
    assert SHAPES[name].policy / 1e9 == pytest.approx(billions, rel=1e-3)


def test_one_gpu_holds_36_bytes_per_weight_while_a_gradient_exists():
    shape = Shape(**{**vars(TINY), "tied": True})
    memory = memory_of(job(shape, rows=1, prompt=1, response=1))
    assert (shape.policy, shape.critic) == (328, 328)
    # 14 bytes of actor and critic each, 2 of the reference.
    assert memory.weights + memory.optimizer == 30 * 328
    assert memory.gradients == 6 * 328


def test_shards_take_what_a_weight_takes_divided_by_the_gpus():
    memory = memory_of(job(TINY, 4, rows=4))
    actor, critic = 2 * 144 + 80, 2 * 144 + 40
    assert memory.weights == 4 * (2 * actor + critic) / 4
    assert memory.optimizer == 8 * (actor + critic) / 4
    assert memory.gradients == 4 * actor / 4


def test_sharding_does_not_help_where_a_gpu_holds_a_full_tensor():
    few, many = memory_of(job("7B", 8)), memory_of(job("7B", 512))
    weights = SHAPES["7B"].policy
    assert many.sampling > 2 * weights  # the gathered actor, to sample
    assert many.loading == pytest.approx(few.loading / 64)  # its own rows of every tensor
    assert many.saving == pytest.approx(few.saving / 64)  # shards only


def test_copies_of_shards_take_the_memory_of_the_shards_and_sum_once_more():
    sharded = job(TINY, 2, rows=4)
    copied = job(TINY, 4, rows=4, ray__fsdp_size="2", ray__workers="4")
    assert memory_of(copied).optimizer == memory_of(sharded).optimizer
    actor, critic = 2 * 144 + 80, 2 * 144 + 40
    assert network_of(copied).sampling == network_of(sharded).sampling == 2 * actor / 2
    assert network_of(copied).scatters == 4 * (actor + critic) * (1 / 2 + 2 * 1 / 2 / 2)


def test_a_micro_batch_gathers_all_weights_then_the_layers_again_and_sums_a_float32_gradient():
    """As counted with FSDP2 on two processes, 4 layers and the root: 5 gathers in a forward, 4 in a
    backward, and 5 sums."""
    once, twice = (
        network_of(job(TINY, 2, rows=4, prompt=4, response=4, **micro(budget)))
        for budget in (16, 8)
    )
    actor, critic = 2 * 144 + 80, 2 * 144 + 40
    assert once.sampling == 2 * actor / 2
    forwards = critic + actor  # values and reference
    updates = (critic + 288) + (actor + 288)
    assert once.gathers == 2 * (forwards + updates) / 2
    assert once.scatters == 4 * (actor + critic) / 2
    assert twice.scatters == 2 * once.scatters


def test_one_gpu_needs_no_network():
    network = network_of(job("7B"))
    assert (network.sampling, network.gathers, network.scatters, network.batch) == (0, 0, 0, 0)


def test_checkpointing_exchanges_memory_for_a_third_more_work():
    plain, saving = (
        job("7B", 8, rows=512, **micro(16384, checkpointing)) for checkpointing in (False, True)
    )
    assert memory_of(saving).activations == memory_of(plain).activations_other
    assert memory_of(saving).activations < memory_of(plain).activations / 5
    assert times(saving).update_critic == pytest.approx(4 / 3 * times(plain).update_critic)


# ---- LoRA, quantised weights, 8-bit moments, host memory

LORA = {"model__lora_rank": "2"}
ADAPTERS = 2 * 2 * ((4 + 4) + 2 * (4 + 2) + (4 + 4) + 3 * (4 + 8))  # layers × rank × (in + out)
OFFLOAD = {"actor__offload_optimizer": "true", "critic__offload_optimizer": "true"}


def small(**settings: str) -> Memory:
    return memory_of(job(TINY, rows=1, prompt=1, response=1, **settings))


def test_lora_has_one_frozen_base_and_trains_adapters_of_14_bytes_a_weight():
    memory = small(**LORA)
    assert memory.weights == 2 * (2 * 144 + 80) + 2 * 2 * ADAPTERS
    assert memory.optimizer == 12 * 2 * ADAPTERS
    assert memory.gradients == 6 * ADAPTERS
    some = small(**LORA, model__lora_targets='["q_proj", "down_proj"]')
    assert some.optimizer == 12 * 2 * (2 * 2 * ((4 + 4) + (4 + 8)))


def test_adapters_work_in_float32_beside_a_layer():
    """Inputs 4 + 4 + 4 + 4 + 4 + 4 + 8 and three widest outputs of 8, for each of the 2 tokens."""
    plain = memory_of(job(TINY, rows=1, prompt=1, response=1))
    assert small(**LORA).activations - plain.activations == 4 * 2 * (32 + 3 * 8)
    only = small(**LORA, model__lora_targets='["k_proj"]')
    assert only.activations - plain.activations == 4 * 2 * (4 + 3 * 2)


@pytest.mark.parametrize(
    ("shape", "gib", "quantize", "measured"),
    [("1.5B", 12, "nf4", 3.7), ("1.5B", 12, "none", 5.8), ("7B", 24, "nf4", 10.7), ("7B", 139, "none", 20.1)],
)  # fmt: skip
def test_lora_takes_what_it_took_on_a_gpu(shape: str, gib: float, quantize: str, measured: float):
    """Peaks of benchmarks/small_gpu.py on an H200; the largest of these errors is 7 %."""
    config = {"model__lora_rank": "16", "model__quantize": quantize, **micro(4096, True)}
    given = job(shape, rows=32, prompt=512, response=512, rates=Rates(gib=gib), **config)
    assert memory_of(given).peak / GIB == pytest.approx(measured, rel=0.08)


def test_a_critic_or_reference_from_another_folder_has_a_base_of_its_own():
    shared = small(**LORA)
    critic = small(**LORA, model__critic_path="other")
    assert critic.weights == shared.weights + 2 * (2 * 144 + 40)
    reference = small(**LORA, model__reference_path="other")
    assert reference.weights == shared.weights + 2 * (2 * 144 + 80)


@pytest.mark.parametrize(("kind", "size"), [("nf4", 0.5625), ("int8", 1.0625)])
def test_quantised_matrices_take_less_and_tables_what_they_took(kind: str, size: float):
    memory = small(**LORA, model__quantize=kind)
    assert memory.weights == size * 2 * 144 + 2 * 80 + 2 * 2 * ADAPTERS
    assert memory.unpacked == 2 * 4 * 8  # one matrix at a time


def test_moments_of_8_bits_take_a_quarter():
    names = {"actor__optimizer": "adamw8bit", "critic__optimizer": "paged_adamw8bit"}
    weights = (2 * 144 + 80) + (2 * 144 + 40)
    assert small(**names).optimizer == pytest.approx((4 + 2 + 2 / 64) * weights)


def test_what_is_offloaded_is_on_the_gpu_only_while_it_is_used():
    plain = small()
    offloaded = small(**OFFLOAD, model__offload_reference="true")
    actor = 2 * 144 + 80
    assert offloaded.host == plain.optimizer + 2 * actor
    assert offloaded.optimizer == 0
    assert offloaded.saving == plain.saving - offloaded.host
    assert offloaded.forward == plain.forward - plain.optimizer
    assert offloaded.updating < plain.updating


def test_a_step_of_offloaded_state_takes_its_largest_part():
    offloaded = job("1.5B", **OFFLOAD, **micro(1024, True))
    table = SHAPES["1.5B"].table
    expected = memory_of(offloaded).saving + (6 * SHAPES["1.5B"].policy + 12 * table)
    assert memory_of(offloaded).updating == pytest.approx(expected)


def test_frozen_weights_take_a_third_less_arithmetic():
    trained = times(job("7B", **micro(16384)))
    frozen = times(job("7B", **LORA, **micro(16384)))
    assert frozen.update_critic == pytest.approx(2 / 3 * trained.update_critic, rel=1e-3)
    assert times(job("7B", **LORA, model__quantize="nf4")).decode > frozen.decode


def test_the_plan_of_a_recipe_for_one_process_has_one_column(capsys: pytest.CaptureFixture[str]):
    settings = "--shape 7B --model.lora_rank 16 --model.quantize nf4"
    cli.main(shlex.split(f"plan {settings}"))
    shown = capsys.readouterr().out
    assert "LoRA of rank 16: 40.4M weights per adapter set; frozen weights in nf4" in shown
    assert re.search(r"\nGPUs +1\n", shown)
    assert "never run on a GPU" not in shown  # docs/performance.md has its figures
    cli.main(shlex.split("plan --shape 32B --model.lora_rank 16 --model.quantize int8"))
    said = "arithmetic only, never run on a GPU: 8-bit weights, LoRA above 7B\n"
    assert capsys.readouterr().out.endswith(said)
    with pytest.raises(SystemExit):
        cli.main(shlex.split(f"plan {settings} --gpus 8"))
    assert (
        "--gpus 8: model.quantize is for one process; leave out --gpus" in capsys.readouterr().err
    )


# ---- against what was measured on one H200 on 2026-11-15 (docs/performance.md)


@pytest.mark.parametrize(
    ("of", "measured"),
    [
        (job("135M", prompt=46, **micro(65536, True)), 6.5),
        (job("1.5B", rows=64, prompt=46, **micro(16384)), 66.7),
        (job("135M", **micro(65536), **EAGER), 25.4),  # 256 × 148 tokens: 38,000
        (job("135M", **micro(32768), **EAGER), 15.9),
        (job("135M", **micro(16384), **EAGER), 13.1),
        (job("135M", **micro(8192), **EAGER), 9.1),
        (job("135M", **micro(65536, True)), 6.2),
        (job("0.5B", prompt=46, **micro(16384)), 31.0),
        (job("1.5B", prompt=46, **micro(16384)), 80.4),
    ],
)
def test_peak_memory_is_within_15_percent_of_what_was_measured(
    of: Job, measured: float, monkeypatch: pytest.MonkeyPatch
):
    # chunks of logits were smaller when this was measured
    monkeypatch.setattr(plan_memory, "logits_at_once", lambda memory: MAX_LOGITS)
    assert memory_of(of).peak / GIB == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("tokens", "measured"), [(16384, 23.5), (8192, 15.6)])
def test_what_graphs_of_updates_keep_is_within_17_percent_of_what_was_measured(
    tokens: int, measured: float, monkeypatch: pytest.MonkeyPatch
):
    """On 2026-11-16. Reserved memory: what graphs keep is not counted as allocated."""
    monkeypatch.setattr(plan_memory, "logits_at_once", lambda memory: MAX_LOGITS)
    captured = memory_of(job("135M", prompt=46, **micro(tokens)))
    assert captured.peak / GIB == pytest.approx(measured, rel=0.17)
    eager = memory_of(job("135M", prompt=46, **micro(tokens), **EAGER))
    assert captured.without_graphs() == eager


def test_graphs_are_captured_only_where_the_learner_would_capture_them():
    by_default = job("135M", prompt=46, **micro(16384))
    assert is_captured(by_default, by_default.roles[1])
    for other in (
        job("135M", prompt=46, **micro(65536)),  # 1.35e8 weights × 44,544 tokens
        job("135M", prompt=46, **micro(16384, True)),
        job("135M", prompt=46, **micro(16384), **LORA),
        job("135M", prompt=46, **micro(16384), model__dtype="float32"),
        job("135M", 2, prompt=46, **micro(16384)),
    ):
        assert not is_captured(other, other.roles[1])
        assert memory_of(other).graphs == 0
    # A step takes 13 GiB at its peak, 9 of them only then: 20 GiB do not have twice that free.
    assert memory_of(job("135M", prompt=46, rates=Rates(gib=20), **micro(16384))).graphs == 0
    capture = pytest.importorskip("telescope.models.fast.capture")
    assert capture.MAX_WORK == MAX_WORK


def test_adapters_and_vllm_cost_what_they_cost_at_135m():
    """The whole update: 1.31 s with LoRA. vLLM: 1.5 s more, and 4 GiB that it keeps."""
    lora = job("135M", prompt=46, model__lora_rank="16", **micro(65536, True))
    assert times(lora).step == pytest.approx(1.31, rel=0.05)
    ours = job("135M", prompt=46, **micro(65536, True))
    vllm = job("135M", prompt=46, rollout__engine="vllm", **micro(65536, True))
    assert times(vllm).step - times(ours).step == pytest.approx(1.5, rel=0.1)
    more = memory_of(vllm).updating - memory_of(ours).updating
    assert more == VLLM_KEPT == 4 * GIB


def test_updates_of_1_5b_take_what_was_measured_at_the_measured_rate():
    found = times(job("1.5B", rows=64, prompt=46, rates=Rates(tflops=465, gib=139), **micro(16384)))
    assert found.update_critic == pytest.approx(0.188, rel=0.05)
    assert found.update_actor == pytest.approx(0.216, rel=0.05)
    assert 64 * 128 / found.decode == pytest.approx(26_400, rel=0.1)


def test_135m_is_limited_by_launches_and_slower_than_estimated():
    found = times(job("135M", prompt=46, **micro(65536, True)))
    assert found.decode == pytest.approx(0.239, rel=0.1)
    assert found.update_critic == 4 * 30 * LAUNCH  # the arithmetic alone would take less
    assert 0.6 < found.update_critic / 0.162 < 1
    assert 0.6 < found.update_actor / 0.158 < 1
    assert 0.6 < found.forward / (0.037 + 0.037) < 1


# ---- recipes, the command, the page


def planned(name: str, shape: str, gpus: int) -> Memory:
    config = load_config(ROOT / "recipes" / name)
    assert config.ray.workers == gpus
    assert config.backend == "ray"
    prompt = config.data.max_prompt_tokens
    response = config.rollout.max_response_tokens
    return memory_of(Job(config, gpus, SHAPES[shape], SHAPES[shape], prompt, response))


# ---- GPUs that do not train


def on_ray(gpus: int, **settings: str) -> Job:
    return job(TINY, gpus, rows=4, prompt=2, response=2, backend="ray", **settings)


def test_samplers_hold_the_policy_and_its_cache_and_trainers_do_not():
    apart = on_ray(4, ray__samplers="2", rollout__cuda_graphs="false")
    together = on_ray(2, ray__workers="2")
    trains, samples = memories(apart).values()
    assert apart.workers == 2
    policy, cached = 2 * 144 + 80, 2 * 2 * 1 * 2
    assert samples.sampling_weights == 2 * policy
    assert samples.cache == 2 * cached * 4 * 2  # 2 rows of 4 tokens each
    assert samples.sampling == 2 * policy + samples.cache + 24 * 10 * 2
    assert samples.sending == 2 * policy + 2 * 40  # one weight more at a time
    assert (trains.sampling, trains.cache) == (0, 0)
    assert trains.updating == memory_of(together).updating
    assert trains.sending == trains.saving + 2 * 40
    assert memory_of(together).sampling > 2 * policy


def test_weights_for_samplers_are_gathered_and_arrive_as_computed_with():
    trains, samples = networks(on_ray(4, ray__samplers="2")).values()
    assert trains.sampling == 2 * (2 * 144 + 80) / 2
    assert samples.sampling == 2 * (2 * 144 + 80)
    assert (samples.gathers, samples.scatters, samples.batch) == (0, 0, 0)


def test_a_critic_on_gpus_of_its_own_takes_its_memory_and_traffic_along():
    apart = on_ray(6, ray__critic_workers="4")
    trains, critic = memories(apart).values()
    assert trains.weights == 4 * 2 * (2 * 144 + 80) / 2  # actor and reference
    assert trains.optimizer == 8 * (2 * 144 + 80) / 2
    assert (critic.weights, critic.optimizer) == (4 * 328 / 4, 8 * 328 / 4)
    assert critic.sampling == 0
    of_actor, of_critic = networks(apart).values()
    assert of_critic.scatters == 4 * 328 * 3 / 4
    assert of_actor.scatters == 4 * 368 / 2


def test_workers_that_score_hold_the_reward_model_whole_in_float32():
    config = on_ray(5, ray__reward_workers="1", reward__model="rm", ray__workers="4")
    trains, scores = memories(replace(config, reward=TINY)).values()
    assert scores.reward == 4 * 328
    assert scores.scoring == 4 * 328 + 4 * 16384 * (3 * 8 + 2 * 4)
    assert trains.reward == 0
    alone = replace(job(TINY, rows=4, reward__model="rm"), reward=TINY)
    assert memory_of(alone).reward == 4 * 328
    assert memory_of(alone).saving == memory_of(replace(alone, reward=None)).saving + 4 * 328


def test_a_colocated_vllm_has_a_whole_policy_and_the_cache_of_its_share_of_the_rows():
    """It sleeps between rollouts: then its weights are in host memory."""
    colocated = on_ray(2, ray__workers="2", rollout__engine="vllm")
    memory = memory_of(colocated)
    policy = 2 * (2 * 144 + 80)
    assert (memory.sampling_weights, memory.host) == (policy, policy)
    assert memory.cache == (2 + 1) * 128 * 2 * (2 * 2 * 1 * 2)  # blocks of 128 tokens
    assert (
        memory.sampling == memory.weights + memory.optimizer + policy + memory.cache + memory.vllm
    )
    plain = memory_of(on_ray(2, ray__workers="2"))
    assert memory.updating == plain.updating + VLLM_KEPT
    assert networks(colocated)["trains"].sampling == 4 * (2 * 144 + 80) / 2


def test_vllm_reserves_the_cache_for_its_share_of_the_rows():
    vllm = pytest.importorskip("telescope.rollout.vllm")
    rows = {"rollout__batch_size": "2048", "rollout__engine": "vllm", "backend": "ray"}
    for gpus, settings, expected in (
        (8, {"ray__workers": "8"}, 256),
        (5, {"ray__workers": "2", "ray__samplers": "3"}, 683),
        (1, {"backend": "local"}, 1024),
    ):
        planned = job(TINY, gpus, **(rows | settings))
        assert vllm.rows_at_once(planned.config) == expected
        assert min(sampled_rows(planned), VLLM_ROWS) == expected
    assert VLLM_ROWS == vllm.MOST_ROWS


def test_tensor_parallelism_divides_the_cache_as_far_as_there_are_heads():
    shape = SHAPES["70B"]
    whole = 2 * 80 * 8 * 128
    split = [whole / shape.cached(size) for size in (1, 2, 4, 8, 16)]
    assert split == [1, 2, 4, 8, 8]


def test_gpus_of_one_vllm_hold_equal_parts_of_the_policy():
    settings = {"ray__samplers": "4", "rollout__engine": "vllm"}
    whole, halves = (
        memories(on_ray(6, **settings, rollout__tensor_parallel_size=size))["samples"]
        for size in ("1", "2")
    )
    assert halves.sampling_weights == whole.sampling_weights / 2 == 2 * (2 * 144 + 80) / 2
    # Half as many engines: each has twice the rows, and the one K/V head is on both GPUs.
    row = 128 * 2 * (2 * 2 * 1 * 2)
    assert (whole.cache, halves.cache) == ((1 + 1) * row, (2 + 1) * row)
    assert on_ray(6, **settings, rollout__tensor_parallel_size="2").samplers == 2
    # A weight still arrives whole.
    assert halves.sending - halves.cache - VLLM_KEPT == halves.sampling_weights + 2 * 40


def test_ranks_that_share_rows_hold_a_part_of_their_tokens():
    """Two groups of two: each group has half of the rows, each GPU half of a row's tokens."""
    alone = on_ray(4, ray__workers="4")
    shared = on_ray(4, ray__workers="4", ray__sequence_parallel_size="2")
    assert (alone.rows, shared.rows) == (1, 2)
    long = dict(rows=4, prompt=2, response=16382, backend="ray", ray__workers="4")
    whole = memory_of(job(TINY, 4, **long))
    halves = memory_of(job(TINY, 4, **long, ray__sequence_parallel_size="2"))
    assert halves.activations == whole.activations / 2  # one row at a time in both


def test_sampling_ahead_takes_the_longer_of_decoding_and_training():
    plain = on_ray(3, ray__samplers="1")
    ahead = on_ray(3, ray__samplers="1", rollout__one_step_off_policy="true")
    found = times(plain)
    training = found.forward + found.update_critic + found.update_actor
    assert times(ahead).step == max(found.decode, training) + found.network
    assert found.step == found.decode + training + found.network


def test_every_column_on_several_gpus_says_that_it_is_arithmetic(
    capsys: pytest.CaptureFixture[str],
):
    cli.main(shlex.split("plan --shape 135M --gpus 1"))
    assert "never run" not in capsys.readouterr().out
    cli.main(shlex.split("plan --shape 7B --gpus 8 --rollout.engine vllm"))
    said = "arithmetic only, never run on a GPU: more than one GPU, vLLM above 135M\n"
    assert capsys.readouterr().out.endswith(said)
    cli.main(shlex.split("plan --shape 135M --gpus 8,1"))
    assert "never run on a GPU: more than one GPU\n" in capsys.readouterr().out


def test_columns_of_one_gpu_and_several_say_who_shares_the_frozen_weights(
    capsys: pytest.CaptureFixture[str],
):
    cli.main(shlex.split("plan --shape 7B --gpus 1,8 --model.lora_rank 16"))
    assert "shared by actor, critic and reference on one GPU\n" in capsys.readouterr().out


def test_the_7b_recipe_fits_8_gpus_of_139_gib():
    assert planned("qwen2.5-7b-8gpu.toml", "7B", 8).peak / GIB < 0.9 * 139


def test_the_70b_recipe_fits_64_gpus_of_80_gib_in_every_phase():
    config = load_config(ROOT / "recipes" / "llama-70b-64gpu.toml")
    prompt = config.data.max_prompt_tokens
    response = config.rollout.max_response_tokens
    of = Job(config, all_gpus(config), SHAPES["70B"], SHAPES["70B"], prompt, response)
    assert (of.gpus, of.workers, of.samplers, of.tensor_parallel) == (64, 48, 2, 8)
    kinds = memories(of)
    assert set(kinds) == {"trains", "samples"}
    for memory in kinds.values():
        assert memory.peak / GIB < 0.9 * 80
    # Without tensor parallelism a sampler would hold 131 GiB of weights.
    whole = replace(of, config=load_config(None, [("backend", "ray"), ("ray.samplers", "16")]))
    assert memories(whole)["samples"].sampling_weights / GIB > 131


def test_the_tables_of_the_page_are_what_the_command_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(ROOT)
    shown = re.findall(
        r"```text\n\$ telescope (plan [^\n]*)\n(.*?)\n```",
        (ROOT / "docs" / "scale.md").read_text("utf-8"),
        re.DOTALL,
    )
    assert len(shown) >= 3
    for command, output in shown:
        cli.main(shlex.split(command))
        assert capsys.readouterr().out.strip() == output


def test_planning_imports_no_torch():
    code = (
        "import sys; from telescope import commands; commands.main(['plan', '--shape', '7B']); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_the_shape_is_read_from_the_models_folder(tmp_path: Path):
    config = {
        "hidden_size": 4,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "intermediate_size": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 10}))
    assert read_shape(str(tmp_path)) == TINY
    assert read_shape(str(tmp_path / "elsewhere")) is None
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(TelescopeError, match=r"has no 'vocab_size'.*--shape"):
        read_shape(str(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_experts": 8}))
    with pytest.raises(TelescopeError, match="dense"):
        read_shape(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model.path", "org/model"], "name a shape, --shape 135M|"),
        (["--shape", "7B", "--gpus", "0"], "--gpus 0"),
        (["--shape", "7B", "--gpus", "many"], "--gpus many"),
        (["--shape", "7B", "--tflops", "0"], "--tflops 0: give a positive number"),
        (["--shape", "7B", "--network", "nan"], "--network nan: give a positive number"),
        (["--shape", "7B", "--prompt-tokens", "0"], "--prompt-tokens 0: give a positive number"),
        (["--shape", "7B", "--actor.lrr", "1"], "did you mean `actor.lr`?"),
    ],
)
def test_a_mistake_is_one_line_with_a_remedy(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        cli.main(["plan", *arguments])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_critic_of_zeros_takes_neither_memory_nor_time():
    with_critic = job("7B", 8)
    without = Job(**{**vars(with_critic), "critic": NO_CRITIC})
    assert memory_of(without).weights == pytest.approx(
        memory_of(with_critic).weights * 2 / 3, rel=0.05
    )
    assert times(without).update_critic == 0
    assert times(without).step < times(with_critic).step


def test_what_the_plan_does_not_know_is_named(capsys: pytest.CaptureFixture[str]):
    cli.main(shlex.split("plan --shape 7B --gpus 8 --backend ray --reward.model rm"))
    unknown = "not in these figures: reward.model, which the controller's CPU runs\n"
    assert unknown in capsys.readouterr().out
    cli.main(shlex.split("plan --shape 7B --gpus 1,8 --reward.model rm"))
    assert unknown in capsys.readouterr().out
    cli.main(shlex.split("plan --shape 7B --gpus 1 --actor.offload_optimizer true"))
    assert "not in these figures: the time that offloading takes\n" in capsys.readouterr().out
    cli.main(shlex.split("plan --shape 7B --gpus 8"))
    assert "not in these figures" not in capsys.readouterr().out


def test_gpus_that_do_not_train_are_part_of_the_number(capsys: pytest.CaptureFixture[str]):
    settings = "--backend ray --ray.workers 4 --ray.samplers 2 --ray.critic_workers 8"
    cli.main(shlex.split(f"plan --shape 7B {settings}"))
    shown = capsys.readouterr().out
    counts = re.findall(r"\n(?:GPUs|  that [a-z ]+) +(\d+)", shown)
    assert counts == ["14", "4", "8", "2"]
    with pytest.raises(SystemExit):
        cli.main(shlex.split(f"plan --shape 7B --gpus 10 {settings}"))
    assert "none of 10 is left to train" in capsys.readouterr().err


@pytest.mark.parametrize("gib", [8, 24, 80, 139])
def test_the_plan_knows_how_many_logits_exist_at_once(gib: int):
    packed = pytest.importorskip("telescope.models.fast.packed")
    assert logits_at_once(gib * 2**30) == packed.logits_at_once(gib * 2**30)
    assert logits_at_once(139 * 2**30) * 4 == 139 * 2**30 // 128
    assert logits_at_once(8 * 2**30) == 2**26
