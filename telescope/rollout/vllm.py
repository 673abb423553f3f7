"""vLLM as the sampler: an engine in this process, with its own copy of the actor's weights.

The copy is updated before a rollout if the policy has changed.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from telescope.config import Config
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError, pip_install
from telescope.rollout.sampler import Rollout, cache_shape, unpadded

MOST_ROWS = 1024  # that run at a time; further ones wait
_BLOCK = 128  # tokens: a multiple of vLLM's block size on any device


@dataclass(frozen=True)
class Team:
    """The processes that run one engine, each with its part of every weight."""

    rank: int
    size: int
    address: str
    """Host and port at which the first one waits for the others."""


class VllmSampler:
    """Starts the engine on first use. On a GPU shared with training it uses vLLM's sleep mode.

    In sleep mode, between rollouts, the cache is freed and the weights are in CPU memory. The
    memory of the CUDA graphs stays on the GPU. `colocated`: training uses the same GPU.

    In a `team` the first process is asked for responses, and the others `follow` it: each runs the
    same requests on its part of the weights, so all draw the same tokens.
    """

    def __init__(
        self,
        path: str,
        config: Config,
        *,
        stop: Sequence[int],
        pad: int,
        device: torch.device | str,
        colocated: bool = False,
        team: Team | None = None,
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise TelescopeError(f"rollout.engine = 'vllm' needs vLLM: {pip_install('vllm')}")
        self.path = os.path.expanduser(path)
        self.config = config
        self.pad = pad
        self.device = torch.device(device)
        if self.device.index:
            raise TelescopeError(
                "vLLM takes the first GPU that it sees: "
                f"set CUDA_VISIBLE_DEVICES={self.device.index} and device = 'cuda'"
            )
        self.stop = torch.tensor(list(stop))
        self.team = team
        self.sleeps = colocated and self.device.type == "cuda"
        self.asleep = False
        self.version = 0  # the weights in the folder
        self._stream: Any = None

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """Takes all weights by their names in Hugging Face files, unless it has this version."""
        if version == self.version:
            return
        with self._running() as engine:
            engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(named)})
            if self.device.type == "cpu":
                engine.apply_model(_repack_head)
            self.version = version

    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor,
        *,
        seed: int,
        greedy: bool = False,
        rows: Sequence[int] | None = None,
        limits: Sequence[int] | None = None,
    ) -> Rollout:
        """See `Sampler.generate`."""
        prompts = unpadded(input_ids, attention_mask)
        numbers = range(len(prompts)) if rows is None else rows
        seeds = [None if greedy else mix_seed(seed, number) for number in numbers]
        limits = limits or [self.config.rollout.max_response_tokens] * len(prompts)
        asked = (prompts, seeds, limits)
        if self.team is not None:
            self._share(asked)
        return self._as_rollout(self._answer(*asked))

    def follow(self) -> None:
        """Does what the first of the team does, until that one calls `dismiss`."""
        while (asked := self._share(None)) is not None:
            self._answer(*asked)

    def dismiss(self) -> None:
        """Lets the rest of the team return from `follow`."""
        self._share(None)

    def _share(self, asked: Any) -> Any:
        """What the first of the team gives here, in every process of the team."""
        with self._running():
            from vllm.distributed.parallel_state import get_world_group

            return get_world_group().broadcast_object(asked, src=0)

    def _answer(
        self, prompts: Sequence[list[int]], seeds: Sequence[int | None], limits: Sequence[int]
    ) -> list[Any]:
        """What vLLM writes after each of the prompts."""
        with self._running() as engine:
            sampling = [
                self._sampling(own, max_tokens=limit)
                for own, limit in zip(seeds, limits, strict=True)
            ]
            requests = [{"prompt_token_ids": ids} for ids in prompts]
            answers = engine.generate(requests, sampling, use_tqdm=False)
            if self.sleeps:
                self._synchronize()  # a step whose result is not needed may still run
                engine.sleep(level=1)
                self.asleep = True
        return [answer.outputs[0] for answer in answers]

    def _as_rollout(self, outputs: Sequence[Any]) -> Rollout:
        ids = [torch.tensor(list(output.token_ids)) for output in outputs]
        log_probs = [torch.tensor(output.logprobs.logprobs) for output in outputs]
        truncated = [output.finish_reason != "stop" for output in outputs]
        return Rollout(
            pad_sequence(ids, True, self.pad).to(self.device),
            torch.tensor([len(own) for own in ids], device=self.device),
            pad_sequence(log_probs, True, 0.0).to(self.device),
            torch.tensor(truncated, device=self.device),
        )

    def _sampling(self, seed: int | None, *, max_tokens: int) -> Any:
        """Settings of one row; greedy without a seed.

        The temperature is 1 here, because it is in the logits already (`_divide_logits`).
        """
        from vllm import SamplingParams

        config = self.config.rollout
        chosen: dict[str, Any] = {"temperature": 0.0}
        if seed is not None:
            chosen = {
                "temperature": 1.0,
                "top_p": config.top_p,
                "top_k": config.top_k,
                "seed": seed,
            }
        return SamplingParams(
            **chosen,
            max_tokens=max_tokens,
            ignore_eos=True,
            stop_token_ids=[token for token in self.stop.tolist() if token >= 0],
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
        )

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """Yields the running engine.

        vLLM replaces the thread's current CUDA stream. The `with` block gives it a separate stream,
        so that training keeps the old one.
        """
        import_vllm()
        self._synchronize()
        if self.device.type == "cuda":
            self._stream = self._stream or torch.cuda.Stream()
        with torch.cuda.stream(self._stream):  # None changes nothing
            engine = self._engine
            if self.asleep:
                torch.cuda.empty_cache()  # vLLM's allocator cannot use what torch holds in reserve
                engine.wake_up()
                self.asleep = False
            yield engine
            self._synchronize()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @functools.cached_property
    def _engine(self) -> Any:
        """Starts the engine and writes one token.

        If either fails, vLLM has no kernels for this model on this device.
        """
        try:
            return self._start_engine()
        except Exception as error:
            message = " ".join(str(error).split())[:300]
            raise TelescopeError(f"vLLM cannot run {self.path} here: {message}") from error

    def _start_engine(self) -> Any:
        from vllm.platforms import current_platform

        config = self.config.rollout
        built_for = current_platform.device_type
        if built_for != self.device.type:
            raise ValueError(f"it was built for {built_for}, and device = {self.device.type!r}")
        length, cache_bytes, memory = self._sizes()
        engine = import_vllm().LLM(
            model=self.path,
            dtype=self.config.model.dtype,
            trust_remote_code=self.config.model.trust_remote_code,
            skip_tokenizer_init=True,
            max_model_len=length,
            max_num_seqs=rows_at_once(self.config),
            kv_cache_memory_bytes=cache_bytes,
            enable_prefix_caching=False,  # cached values would outlive the weights
            logprobs_mode="raw_logprobs",
            enable_sleep_mode=self.sleeps,
            enforce_eager=self.device.type == "cpu" or not config.cuda_graphs,
            use_tqdm_on_load=False,
            **memory,
            **self._parallel(),
        )
        if config.temperature != 1:
            divide = functools.partial(_divide_logits, temperature=config.temperature)
            engine.apply_model(divide)
        one_token = self._sampling(None, max_tokens=1)
        engine.generate([{"prompt_token_ids": [0]}], one_token, use_tqdm=False)
        return engine

    def _parallel(self) -> dict[str, Any]:
        """vLLM's settings for a team.

        Each process schedules for itself, and all schedule alike.
        """
        if self.team is None:
            return {}
        from vllm.v1.executor.uniproc_executor import ExecutorWithExternalLauncher

        place = f"tcp://{self.team.address}", self.team.rank, 0  # 0: each sees one GPU
        # vLLM's own class reads its place from the environment.
        executor = type(
            "TeamExecutor",
            (ExecutorWithExternalLauncher,),
            {"_distributed_args": lambda _: place},
        )
        return {
            "tensor_parallel_size": self.team.size,
            "distributed_executor_backend": executor,
            # It would look for the others' GPUs, which this process cannot see.
            "disable_custom_all_reduce": True,
        }

    def _sizes(self) -> tuple[int, int, dict[str, float]]:
        """Tokens of the longest row, bytes of the cache, and vLLM's memory setting.

        The cache is for all rows, or for as many as fit. On a GPU vLLM checks its
        `gpu_memory_utilization` at the start.
        """
        from transformers import AutoConfig

        model = self.config.model
        config = AutoConfig.from_pretrained(self.path, trust_remote_code=model.trust_remote_code)
        length = self.config.data.max_prompt_tokens + self.config.rollout.max_response_tokens
        length = min(length, getattr(config.get_text_config(), "max_position_embeddings", length))
        (heads, size), layers = cache_shape(config)
        if self.team is not None:
            heads = max(heads // self.team.size, 1)
        itemsize = getattr(torch, model.dtype).itemsize
        blocks = -(-length // _BLOCK)  # rounded up
        bytes_per_row = blocks * _BLOCK * 2 * layers * heads * size * itemsize
        cache_bytes = (rows_at_once(self.config) + 1) * bytes_per_row
        if self.device.type == "cpu":
            return length, cache_bytes, {}
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        allowed = self.config.rollout.gpu_memory_utilization * free
        return length, int(min(cache_bytes, allowed)), {"gpu_memory_utilization": allowed / total}


def rows_at_once(config: Config) -> int:
    """Rows of a step that one engine writes: its share of them, which several engines divide."""
    engines = 1
    if config.backend == "ray":
        samplers = config.ray.samplers // config.rollout.tensor_parallel_size
        engines = samplers or config.ray.workers
    rows = -(-config.rollout.batch_size * config.rollout.n // engines)  # rounded up
    return min(rows, MOST_ROWS)


def import_vllm() -> Any:
    """Imports vLLM, after setting the environment variables that it reads then."""
    # In this process, so that weights are handed over by reference.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    defaults = {
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(torch.get_num_threads()),  # else vLLM leaves training one thread
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # it has no seeds per row
    }
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    import vllm
    import vllm.utils.torch_utils  # from here on vLLM follows every change of the stream

    return vllm


def _divide_logits(model: Any, temperature: float) -> None:
    """Divides the model's logits by the sampling temperature, inside the model.

    vLLM reports log-probs either before temperature, or after temperature, top-p and top-k.
    Training needs them after temperature only.
    """
    own = model.compute_logits

    def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
        logits = own(*args, **kwargs)
        return None if logits is None else logits.float() / temperature

    model.compute_logits = compute_logits


def _repack_head(model: Any) -> None:
    """Repacks the copy of the output layer that vLLM keeps on CPUs.

    With tied embeddings vLLM does not refresh this copy when weights are loaded.
    """
    head: Any = getattr(model, "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
