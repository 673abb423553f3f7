"""vLLM as the sampler: an engine inside this process, with a copy of the actor's weights that is renewed before a rollout."""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from telescope.config import Config
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.rollout.sampler import Rollout, cache_shape

MOST_ROWS = 1024  # that run at a time; further ones wait
_BLOCK = 128  # tokens: a multiple of what the engine hands out at a time, on any device


class VllmSampler:
    """Starts when first used. Where it shares a GPU with training (`colocated`) it sleeps between rollouts.

    Asleep it has given the cache up and keeps its weights in the machine's memory; what its CUDA graphs need stays on the GPU.
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
    ) -> None:
        if importlib.util.find_spec("vllm") is None:
            raise TelescopeError("rollout.engine = 'vllm' needs vLLM: pip install -e '.[vllm]'")
        self.path, self.config, self.pad, self.device = (
            os.path.expanduser(path),
            config,
            pad,
            torch.device(device),
        )
        if self.device.index:
            raise TelescopeError(
                f"vLLM takes the first GPU that it sees: CUDA_VISIBLE_DEVICES={self.device.index} and device = 'cuda'"
            )
        self.stop = torch.tensor(list(stop))
        self.sleeps, self.asleep = colocated and self.device.type == "cuda", False
        self.version = 0  # the folder's weights
        self._stream: Any = None

    def load_weights(self, named: Iterable[tuple[str, Tensor]], version: int) -> None:
        """All weights, by their names in Hugging Face files; those of the version it has already are left alone."""
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
        numbers = range(len(input_ids)) if rows is None else rows
        prompts = [
            row[keep].tolist()
            for row, keep in zip(input_ids.cpu(), attention_mask.bool().cpu(), strict=True)
        ]
        with self._running() as engine:
            most = limits or [self.config.rollout.max_response_tokens] * len(prompts)
            seeds = [None if greedy else mix_seed(seed, number) for number in numbers]
            sampling = [
                self._sampling(own, max_tokens=limit)
                for own, limit in zip(seeds, most, strict=True)
            ]
            answers = engine.generate(
                [{"prompt_token_ids": ids} for ids in prompts], sampling, use_tqdm=False
            )
            if self.sleeps:
                self._wait()  # a step that nobody needs may still run
                engine.sleep(level=1)
                self.asleep = True
        written = [answer.outputs[0] for answer in answers]
        return Rollout(
            pad_sequence([torch.tensor(list(one.token_ids)) for one in written], True, self.pad).to(
                self.device
            ),
            torch.tensor([len(one.token_ids) for one in written], device=self.device),
            pad_sequence([torch.tensor(one.logprobs.logprobs) for one in written], True, 0.0).to(
                self.device
            ),
            torch.tensor([one.finish_reason != "stop" for one in written], device=self.device),
        )

    def _sampling(self, seed: int | None, **changes: Any) -> Any:
        """Settings of one row; without a seed it is greedy. The temperature is in the logits already (`_divide_logits`)."""
        from vllm import SamplingParams

        config = self.config.rollout
        chosen = (
            {"temperature": 0.0}
            if seed is None
            else {"temperature": 1.0, "top_p": config.top_p, "top_k": config.top_k, "seed": seed}
        )
        ending = {"ignore_eos": True, "stop_token_ids": [i for i in self.stop.tolist() if i >= 0]}
        return SamplingParams(
            **chosen, **{**ending, **changes}, logprobs=0, flat_logprobs=True, detokenize=False
        )

    @contextmanager
    def _running(self) -> Iterator[Any]:
        """The engine, awake. It would make a stream of its own the thread's for good: it gets one, and training keeps its own."""
        import_vllm()
        self._wait()
        if self.device.type == "cuda":
            self._stream = self._stream or torch.cuda.Stream()
        with torch.cuda.stream(self._stream):  # None: no change
            engine = self._engine
            if self.asleep:
                torch.cuda.empty_cache()  # what training holds in reserve is of no use to vLLM's allocator
                engine.wake_up()
                self.asleep = False
            yield engine
            self._wait()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @functools.cached_property
    def _engine(self) -> Any:
        """A failure to start, or to write one token, means that vLLM has no kernels for this model here."""
        from vllm.platforms import current_platform

        config, settings = self.config.rollout, self.config.model
        try:
            built_for = current_platform.device_type
            if built_for != self.device.type:
                raise ValueError(f"it was built for {built_for}, and device = {self.device.type!r}")
            length, cache, memory = self._sizes()
            engine = import_vllm().LLM(
                model=self.path,
                dtype=settings.dtype,
                trust_remote_code=settings.trust_remote_code,
                skip_tokenizer_init=True,
                max_model_len=length,
                max_num_seqs=min(config.batch_size * config.n, MOST_ROWS),
                kv_cache_memory_bytes=cache,
                enable_prefix_caching=False,  # what is cached would outlive the weights that computed it
                logprobs_mode="raw_logprobs",
                enable_sleep_mode=self.sleeps,
                enforce_eager=self.device.type == "cpu" or not config.cuda_graphs,
                use_tqdm_on_load=False,
                **memory,
            )
            if config.temperature != 1:
                engine.apply_model(
                    functools.partial(_divide_logits, temperature=config.temperature)
                )
            engine.generate(
                [{"prompt_token_ids": [0]}], self._sampling(None, max_tokens=1), use_tqdm=False
            )
        except Exception as error:
            raise TelescopeError(
                f"vLLM cannot run {self.path} here: {' '.join(str(error).split())[:300]}"
            ) from error
        return engine

    def _sizes(self) -> tuple[int, int, dict[str, float]]:
        """Tokens of the longest row, bytes of the cache for all rows or as many as fit, and the share of the GPU that it checks."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(
            self.path, trust_remote_code=self.config.model.trust_remote_code
        )
        length = self.config.data.max_prompt_tokens + self.config.rollout.max_response_tokens
        length = min(length, getattr(config.get_text_config(), "max_position_embeddings", length))
        (heads, dim), layers = cache_shape(config)
        rows = min(self.config.rollout.batch_size * self.config.rollout.n, MOST_ROWS) + 1
        itemsize = getattr(torch, self.config.model.dtype).itemsize
        cache = rows * -(-length // _BLOCK) * _BLOCK * 2 * layers * heads * dim * itemsize
        if self.device.type == "cpu":
            return length, cache, {}
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        allowed = self.config.rollout.gpu_memory_utilization * free
        return length, int(min(cache, allowed)), {"gpu_memory_utilization": allowed / total}


def import_vllm() -> Any:
    """The package; it reads these variables when it is imported or an engine starts."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = (
        "0"  # in this process, so that weights are handed over by reference
    )
    threads = str(torch.get_num_threads())  # or else it would leave training a single one
    quiet = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
    for name, value in {
        **quiet,
        "OMP_NUM_THREADS": threads,
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }.items():  # which has no seeds
        os.environ.setdefault(name, value)
    import vllm
    import vllm.utils.torch_utils  # from here on it knows of every change of the stream

    return vllm


def _divide_logits(model: Any, temperature: float) -> None:
    """vLLM's log-probs are either before the temperature, or after it and top-p / top-k. Ours are between: it goes into the logits."""
    own = model.compute_logits

    def compute_logits(*args: Any, **kwargs: Any) -> Tensor | None:
        logits = own(*args, **kwargs)
        return None if logits is None else logits.float() / temperature

    model.compute_logits = compute_logits


def _repack_head(model: Any) -> None:
    """For CPUs the output layer has a packed copy of its weights, which stays as it was where they are the embeddings' too."""
    head: Any = getattr(model, "lm_head", None)
    if hasattr(head, "cpu_linear"):
        head.quant_method.process_weights_after_loading(head)
