"""One side of benchmarks/trl.py, in its own process and environment.

    python -P _trl_worker.py Telescope|TRL|"TRL tuned"

Reads the job as one line of JSON, then the size of each block; answers each with a line of JSON.
Imports only what its side has.
"""

import json
import os
import statistics
import sys
import time
from types import SimpleNamespace

FOREVER = 1_000_000  # updates: the parent says when to stop


class Clock:
    """The worker's end of the pipe.

    `tick` at every update boundary: counts a block's updates, reports, waits for the next.
    """

    def __init__(self) -> None:
        self.pipe = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # whatever a library prints is not for the parent
        self.job = SimpleNamespace(**json.loads(sys.stdin.readline()))
        self.left = 0
        self.wall, self.cpu, self.scores = [], [], []

    def tick(self) -> None:
        wall, cpu = time.perf_counter(), time.process_time()
        if self.left:
            self.wall.append(wall - self.began[0])
            self.cpu.append(cpu - self.began[1])
            self.left -= 1
        if not self.left:
            self._next_block()
        self.began = time.perf_counter(), time.process_time()

    def _next_block(self) -> None:
        import torch
        import transformers

        setup = {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": torch.get_num_threads(),
        }
        score = statistics.fmean(self.scores) if self.scores else None
        print(
            json.dumps({"wall": self.wall, "cpu": self.cpu, "score": score, "setup": setup}),
            file=self.pipe,
        )
        self.wall, self.cpu, self.scores = [], [], []
        self.left = int(sys.stdin.readline() or 0)
        if not self.left:
            os._exit(0)  # no last evaluation, no checkpoint


def telescope_worker(clock: Clock, side: str) -> None:
    import torch

    from telescope.config import Config
    from telescope.trainer import Trainer

    job = clock.job

    def count(response_ids, **_):
        assert all(len(ids) == job.tokens for ids in response_ids), (
            f"a response does not have {job.tokens} tokens"
        )
        scores = [ids.count(job.yes) for ids in response_ids]
        clock.scores.append(sum(scores) / job.batch)
        return scores

    learning = {"lr": job.lr, "epochs": job.epochs}
    config = {
        "dir": job.folder,
        "device": "cpu",
        "steps": FOREVER,
        "rollout": {"batch_size": job.batch, "max_response_tokens": job.tokens},
        "credit": {"lam": job.lam, "kl_coef": job.kl_coef},
        "actor": {**learning, "clip_low": job.clip, "clip_high": job.clip},
        "critic": {**learning, "clip_value": job.clip},
        "checkpoint": {"every": 0},
        "log": {"every": FOREVER},
        "ledger": {"samples": "off"},
    }
    trainer = Trainer(Config.model_validate(config), reward=count)
    trainer.held_out = None  # no evaluation before the first step
    trainer.roles.actor.sampler.stop = torch.tensor([-1])  # no token ends a response
    batches = trainer.dataloader.from_step

    def ticking(*start_and_end):
        steps = batches(*start_and_end)
        while True:
            clock.tick()
            yield next(steps)

    trainer.dataloader.from_step = ticking
    trainer.fit()


def trl_worker(clock: Clock, side: str) -> None:
    import torch
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
        PrinterCallback,
        TrainerCallback,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    job = clock.job
    if not job.gc:
        ppo_trainer.gc = SimpleNamespace(collect=lambda: 0)

    widths = {len(prompt) + job.tokens for prompt in job.prompt_ids}

    class Count(torch.nn.Module):
        """What TRL asks of a reward model, around a count: `backbone` gives "hidden states",
        `score` the reward so far.
        """

        base_model_prefix = "backbone"

        def backbone(self, input_ids, **_):
            assert len(input_ids) == job.batch
            assert input_ids.shape[1] in widths
            counts = (input_ids == job.yes).float().cumsum(1)
            clock.scores.append(float(counts[:, -1].mean()))
            return SimpleNamespace(hidden_states=[counts.unsqueeze(-1)])

        def score(self, hidden):
            return hidden

    class Tick(TrainerCallback):
        def on_train_begin(self, *_, **__):
            clock.tick()

        def on_step_end(self, *_, **__):
            clock.tick()

    if side == "TRL tuned":
        tuned = {
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": job.batch,
        }
    # its defaults: bf16 (of no effect with transformers 5), gradient checkpointing, micro-batches
    # of 8
    else:
        tuned = {"gradient_accumulation_steps": job.batch // 8}
    config = PPOConfig(
        output_dir=job.folder,
        use_cpu=True,
        **tuned,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        num_sample_generations=0,
        total_episodes=FOREVER * job.batch,
        num_mini_batches=1,
        num_ppo_epochs=job.epochs,
        response_length=job.tokens,
        temperature=1.0,
        learning_rate=job.lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        kl_coef=job.kl_coef,
        cliprange=job.clip,
        cliprange_value=job.clip,
        lam=job.lam,
    )
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(job.model, dtype=torch.float32) for _ in range(2)
    )
    trainer = PPOTrainer(
        args=config,
        processing_class=AutoTokenizer.from_pretrained(job.model, padding_side="left"),
        model=policy,
        ref_model=reference,
        reward_model=Count(),
        value_model=AutoModelForSequenceClassification.from_pretrained(
            job.model, num_labels=1, dtype=torch.float32
        ),
        train_dataset=Dataset.from_dict({"input_ids": job.prompt_ids}),
        callbacks=[Tick()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()


if __name__ == "__main__":
    side = sys.argv[1]
    (telescope_worker if side == "Telescope" else trl_worker)(Clock(), side)
