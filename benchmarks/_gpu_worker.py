"""One side of benchmarks/gpu.py, in its own process and environment.

    python -P _gpu_worker.py SIDE

Reads the job as one line of JSON and says when it is ready. Every further line asks for one
measurement; the end of input ends it. Imports only torch, transformers and what its side has.
"""

import functools
import itertools
import json
import math
import os
import sys
import time
import traceback
from types import SimpleNamespace

import torch

FOREVER = 1_000_000  # updates: the parent says when to stop


class Parent:
    """The worker's end of the pipe."""

    def __init__(self) -> None:
        self.pipe = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a library prints is not for the parent
        self.job = SimpleNamespace(**json.loads(sys.stdin.readline()))

    def say(self, **answer) -> None:
        print(json.dumps(answer), file=self.pipe)

    def imported(self) -> None:
        """Libraries are in: what follows is the side's own start."""
        self.job.imported = time.time()

    def ready(self, package: str | None = None) -> None:
        setup = {
            "torch": torch.__version__,
            "transformers": sys.modules["transformers"].__version__,
        }
        setup["version"] = sys.modules[package].__version__ if package else None
        if torch.cuda.is_initialized():  # not in vLLM's: its engine has a process of its own
            setup |= {
                "gpu": torch.cuda.get_device_name(),
                "gpu_gib": torch.cuda.get_device_properties(0).total_memory / 2**30,
            }
        self.say(setup=setup)

    def begin(self) -> None:
        """Waits for a request, which names one of the job's kinds, and starts the clock."""
        request = sys.stdin.readline().strip()
        if not request:
            os._exit(0)  # no last evaluation, no checkpoint
        self.kind = SimpleNamespace(**self.job.kinds[request])
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        self.began = time.perf_counter()

    def end(self, lengths, metrics=dict) -> None:
        """Stops the clock and answers.

        `lengths()` are the tokens of each response, `metrics()` the side's own figures.
        """
        job, peaks = self.job, (0, 0)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
            peaks = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        answer = {
            "seconds": time.perf_counter() - self.began,
            "since_spawn": time.time() - job.spawned,
            "since_imports": time.time() - job.imported,
        }
        tokens = list(lengths())
        assert self.kind.stop or tokens == [self.kind.tokens] * job.batch, (
            f"not every response has {self.kind.tokens} tokens"
        )
        answer |= {"tokens": sum(tokens), "lengths_mean": sum(tokens) / len(tokens)}
        self.say(
            **answer, peak_gib=peaks[0] / 2**30, reserved_gib=peaks[1] / 2**30, metrics=metrics()
        )

    def serve(self, generate, lengths, package: str | None = None) -> None:
        self.ready(package)
        for seed in itertools.count():
            self.begin()
            out = generate(seed, self.kind)
            self.end(lambda: lengths(out))  # noqa: B023


def telescope_config(job):
    from telescope.config import load_config

    settings = {
        "dir": job.folder,
        "device": job.device,
        "steps": FOREVER,
        "log.every": FOREVER,
        "checkpoint.every": 0,
    }
    settings |= {
        "model.path": job.model,
        "model.dtype": "bfloat16",
        "data.files": json.dumps([job.data]),
    }
    settings |= {"rollout.batch_size": job.batch, "rollout.max_response_tokens": job.tokens}
    settings |= {
        "credit.lam": job.lam,
        "credit.kl_coef": job.kl_coef,
        "actor.lr": job.lr,
        "critic.lr": job.lr,
    }
    settings |= {
        "actor.clip_low": job.clip,
        "actor.clip_high": job.clip,
        "critic.clip_value": job.clip,
    }
    settings |= dict(pair.split("=", 1) for pair in job.settings)
    return load_config(None, [(key, str(value)) for key, value in settings.items()])


def padded(job):
    """The prompts, left-padded: ids and mask [B, P]."""
    width = max(map(len, job.prompts))
    ids = [[job.pad] * (width - len(row)) + row for row in job.prompts]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in job.prompts]
    return torch.tensor(ids, device=job.device), torch.tensor(mask, device=job.device)


def telescope_decode(parent: Parent) -> None:
    from telescope.build import build_actor

    parent.imported()
    job = parent.job
    actor = build_actor(telescope_config(job))
    ids, mask = padded(job)

    @functools.cache
    def sampler(tokens, stop):
        limit = actor.config.rollout.model_copy(update={"max_response_tokens": tokens})
        return type(actor.sampler)(
            actor.model, limit, stop=job.stop_ids if stop else [-1], pad=job.pad
        )

    parent.serve(
        lambda seed, kind: sampler(kind.tokens, kind.stop).generate(ids, mask, seed=seed),
        lambda out: out.lengths.tolist(),
    )


def hf_decode(parent: Parent, **cache) -> None:
    from transformers import AutoModelForCausalLM

    parent.imported()
    job = parent.job
    model = (
        AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.bfloat16).to(job.device).eval()
    )
    ids, mask = padded(job)
    options = {
        "do_sample": True,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "pad_token_id": job.pad,
        "eos_token_id": job.stop_ids,
        **cache,
    }

    def generate(seed, kind):
        torch.manual_seed(seed)
        limits = {
            "max_new_tokens": kind.tokens,
            "min_new_tokens": None if kind.stop else kind.tokens,
        }
        return model.generate(ids, attention_mask=mask, **options, **limits)[:, ids.shape[1] :]

    def lengths(responses):
        stops = torch.isin(responses, torch.tensor(job.stop_ids, device=job.device))
        return torch.where(stops.any(1), stops.int().argmax(1) + 1, responses.shape[1]).tolist()

    parent.serve(generate, lengths)


def vllm_decode(parent: Parent) -> None:
    os.environ |= {"VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_NO_USAGE_STATS": "1"}
    import transformers  # noqa: F401 -- its version is told
    import vllm

    parent.imported()
    job = parent.job
    memory = {
        "gpu_memory_utilization": 0.3,
        "max_model_len": max(map(len, job.prompts)) + job.tokens + 1,
        "max_num_seqs": job.batch,
    }
    engine = vllm.LLM(model=job.model, dtype="bfloat16", enable_prefix_caching=False, **memory)
    fastest = {"logprobs": 0, "flat_logprobs": True, "detokenize": False}
    prompts = [{"prompt_token_ids": ids} for ids in job.prompts]

    def generate(_, kind):
        ending = {"stop_token_ids": job.stop_ids} if kind.stop else {"ignore_eos": True}
        sampling = vllm.SamplingParams(
            temperature=1.0, top_p=1.0, top_k=0, max_tokens=kind.tokens, **fastest, **ending
        )
        return engine.generate(prompts, sampling, use_tqdm=False)

    parent.serve(
        generate,
        lambda answers: [len(answer.outputs[0].token_ids) for answer in answers],
        "vllm",
    )


def telescope_update(parent: Parent, package: str | None = None) -> None:
    from telescope.run.startup import preload

    with preload(telescope_config(parent.job)):  # as `telescope train` does
        from telescope.trainer import Trainer

    parent.imported()
    job, lengths = parent.job, []
    if package == "vllm":
        from telescope.rollout.vllm import import_vllm

        import_vllm()
        job.settings = [*job.settings, "rollout.engine=vllm"]

    def count(response_ids, **_):
        lengths[:] = map(len, response_ids)
        return [ids.count(job.counted) for ids in response_ids]

    trainer = Trainer(telescope_config(job), reward=count)
    trainer.dataloader.data.ids = job.prompts  # the same as everywhere
    trainer.roles.actor.sampler.stop = torch.tensor([-1], device=job.device)
    batches = trainer.dataloader.from_step

    def figures():
        return {
            key: value
            for key, value in trainer.history()[-1].items()
            if key.startswith(("timing/", "perf/"))
        }

    def measured(*start_and_end):
        parent.ready(package)
        for step in batches(*start_and_end):
            parent.begin()
            yield step
            parent.end(lambda: lengths, figures)

    trainer.dataloader.from_step = measured
    trainer.fit()


def trl_update(parent: Parent) -> None:
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        PrinterCallback,
        TrainerCallback,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer

    parent.imported()
    job = parent.job

    class Count(torch.nn.Module):
        """What TRL asks of a reward model, around a count: `backbone` gives "hidden states",
        `score` the reward so far.
        """

        base_model_prefix = "backbone"

        def backbone(self, input_ids, **_):
            assert input_ids.shape[1] == max(map(len, job.prompts)) + job.tokens
            return SimpleNamespace(
                hidden_states=[(input_ids == job.counted).float().cumsum(1).unsqueeze(-1)]
            )

        def score(self, hidden):
            return hidden

    class Tick(TrainerCallback):
        def on_train_begin(self, *_, **__):
            parent.ready("trl")
            parent.begin()

        def on_step_end(self, *_, **__):
            parent.end(lambda: [job.tokens] * job.batch)  # without a stop token they are that long
            parent.begin()

    micro = math.gcd(64, job.batch)
    sizes = {
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": job.batch // micro,
        "response_length": job.tokens,
    }
    sizes |= {
        "local_rollout_forward_batch_size": min(job.trl_rollout, job.batch),
        "total_episodes": FOREVER * job.batch,
    }
    learning = {
        "num_mini_batches": 1,
        "num_ppo_epochs": 1,
        "learning_rate": job.lr,
        "lr_scheduler_type": "constant",
        "weight_decay": 0.0,
    }
    learning |= {
        "kl_coef": job.kl_coef,
        "cliprange": job.clip,
        "cliprange_value": job.clip,
        "lam": job.lam,
        "temperature": 1.0,
    }
    place = {
        "output_dir": job.folder,
        "use_cpu": job.device == "cpu",
        "bf16": True,
        "gradient_checkpointing": False,
    }
    off = {
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "num_sample_generations": 0,
    }
    tokenizer = AutoTokenizer.from_pretrained(job.model, padding_side="left")
    used = {token for row in job.prompts for token in row} | {
        *job.stop_ids
    }  # TRL takes every pad for padding, chat's EOS too
    free = (
        str(token) for number, token in tokenizer.added_tokens_decoder.items() if number not in used
    )
    tokenizer.pad_token = next(free, tokenizer.pad_token)
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.bfloat16) for _ in range(2)
    )
    trainer = PPOTrainer(
        args=PPOConfig(**sizes, **learning, **place, **off),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=Count(),
        value_model=AutoModelForSequenceClassification.from_pretrained(
            job.model, num_labels=1, dtype=torch.bfloat16
        ),
        train_dataset=Dataset.from_dict({"input_ids": job.prompts}),
        callbacks=[Tick()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


def make(parent: Parent) -> None:
    """A Qwen2 folder of the job's shape, random weights, with another model's tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

    job = parent.job
    tokenizer = AutoTokenizer.from_pretrained(job.tokenizer)
    config = Qwen2Config(
        **job.shape, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    torch.manual_seed(0)
    with torch.device(job.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(job.model)
    tokenizer.save_pretrained(job.model)
    parent.ready()


SIDES = {
    ("decode", "telescope"): telescope_decode,
    ("decode", "hf"): hf_decode,
    ("decode", "hf-static"): lambda parent: hf_decode(parent, cache_implementation="static"),
    ("decode", "vllm"): vllm_decode,
    ("update", "telescope"): telescope_update,
    ("update", "telescope-vllm"): lambda parent: telescope_update(parent, "vllm"),
    ("update", "trl"): trl_update,
    ("make", "make"): make,
}

if __name__ == "__main__":
    parent = Parent()
    try:
        SIDES[parent.job.case, sys.argv[1]](parent)
    except BaseException as error:
        traceback.print_exc()
        what = "not installed" if isinstance(error, ModuleNotFoundError) else type(error).__name__
        parent.say(error=f"{what}: {' '.join(str(error).split())}")
        os._exit(1)
