"""Updates per second of Telescope and of TRL's PPOTrainer, side by side on the CPU.

    python benchmarks/trl.py

One update is a whole PPO iteration: sample 32 prompts x 16 tokens, score them, values, reference
log-probs, advantages, then 4 epochs of one minibatch each, for actor and critic, and the metrics of
it all. Three workers in their own processes (TRL's environment is made in .venv-trl on first use)
take turns: a block of updates in one while the others wait. Each runs its library's own training
loop and is timed from one update's end to the next one's, data loading included.

Equal on both sides: torch and transformers versions and thread count; the built-in Llama as actor,
critic backbone and reference; the prompts, of 7 and 8 tokens; 16 tokens per response whatever is
sampled (no stop token), temperature 1; the reward, how often 是 was sampled, at next to no cost;
GAE(1, 0.95), whitening, k1 KL penalty 0.05 in the reward, clips of 0.2; fused AdamW at a constant
learning rate; no dropout, evaluation, checkpoint, ledger, tracker or printed log.

TRL runs twice: with its own defaults (bf16, which has no effect with transformers 5; gradient
checkpointing; micro-batches of 8), and "tuned" to this model (float32, no checkpointing, one
micro-batch). Telescope runs in float32, as its defaults have it. In TRL's favour: its two
gc.collect() calls per update do nothing here (--gc lets them); its reward model is a counter of
token ids instead of a network; it does not clip gradients. What Telescope does besides: it clips
gradients, takes the old log-probs from a forward of its own (TRL: the sampler's logits), decodes
the responses to text, writes metrics.jsonl, and steps actor and critic with an optimizer each. What
TRL does besides: it samples through transformers' generate(), and drives the step through
accelerate.

CPU seconds are those of the worker's process, all threads: on a busy machine they say more than the
clock's. One thread is the default: with more, on a shared machine, threads that wait for one
another are most of what is measured.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("_trl_worker.py")
TRL_ENV = ROOT / ".venv-trl"
TRL = "trl==1.12.0"  # the last release with PPO
TORCH = "torch>=2.11,<2.14"
SETTINGS = {
    "batch": 32,
    "tokens": 16,
    "epochs": 4,
    "lr": 3e-4,
    "clip": 0.2,
    "kl_coef": 0.05,
    "lam": 0.95,
}


class Worker:
    """One side, as the parent sees it."""

    def __init__(self, side: str, python: str, job: dict, threads: int) -> None:
        self.side, self.blocks = side, []
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        environment = os.environ | {
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(threads),
        }
        command = [python, "-P", str(WORKER), side]  # -P: without it `import trl` finds this file
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=self.log, text=True, env=environment
        )
        self.setup = self.ask(json.dumps(job))["setup"]

    def ask(self, line: str) -> dict:
        with contextlib.suppress(BrokenPipeError):  # the worker has ended, and its log says why
            print(line, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            self.log.seek(0)
            sys.exit(f"the {self.side} worker ended:\n{self.log.read()[-3000:]}")
        return json.loads(answer)

    def per_round(self, clock: str) -> list[float]:
        return [statistics.median(block[clock]) for block in self.blocks]

    def overall(self, clock: str) -> float:
        return statistics.median(second for block in self.blocks for second in block[clock])


def trl_python() -> str:
    """The python of TRL's environment; made if need be, with this one's transformers."""
    import transformers

    wanted, ready = (
        [TORCH, TRL, f"transformers=={transformers.__version__}"],
        TRL_ENV / "ready.json",
    )
    python = str(TRL_ENV / "bin" / "python")
    if not ready.exists() or json.loads(ready.read_text()) != wanted:
        print(f"making {TRL_ENV} with {', '.join(wanted)}", flush=True)
        venv.create(TRL_ENV, with_pip=True, clear=True)
        for packages in ([TORCH], wanted):
            subprocess.run([python, "-m", "pip", "install", "-q", *packages], check=True)
        ready.write_text(json.dumps(wanted))
    return python


def run(rounds: int, updates: int, threads: int, gc: bool) -> list[Worker]:
    from transformers import AutoTokenizer

    from telescope.data import arithmetic

    model = str(arithmetic.model_folder())
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = arithmetic.rows(evaluation=False)
    prompts = [tokenizer(row["prompt"]).input_ids for row in rows]
    job = {
        **SETTINGS,
        "model": model,
        "prompt_ids": prompts,
        "yes": tokenizer.convert_tokens_to_ids("是"),
        "gc": gc,
    }
    with tempfile.TemporaryDirectory() as folder:
        pythons = {"Telescope": sys.executable, "TRL": trl_python(), "TRL tuned": trl_python()}
        workers = [
            Worker(side, python, job | {"folder": f"{folder}/{side}"}, threads)
            for side, python in pythons.items()
        ]
        if any(worker.setup != workers[0].setup for worker in workers):
            sys.exit(
                f"not comparable: {[worker.setup for worker in workers]}; remove {TRL_ENV} to make "
                "it anew"
            )
        for worker in workers:
            worker.ask(str(updates))  # warm-up, not counted
        for number in range(rounds):
            for worker in workers if number % 2 == 0 else workers[::-1]:
                worker.blocks.append(worker.ask(str(updates)))
        for worker in workers:
            worker.process.communicate("0\n")
    return workers


def show(workers: list[Worker], rounds: int, updates: int) -> None:
    shape = "{batch} prompts x {tokens} tokens x {epochs} epochs".format(**SETTINGS)
    print(
        f"{shape}, {rounds} rounds of {updates} updates; "
        f"{', '.join(f'{k} {v}' for k, v in workers[0].setup.items())}"
    )
    print(
        f"{'':10} {'s/update':>9} {'rounds':>15} {'updates/s':>10} {'CPU s/update':>13} "
        f"{'reward':>13}"
    )
    for worker in workers:
        wall, each = worker.overall("wall"), worker.per_round("wall")
        reward = f"{worker.blocks[0]['score']:.2f} -> {worker.blocks[-1]['score']:.2f}"
        spread = f"{min(each):.4f}-{max(each):.4f}"
        print(
            f"{worker.side:10} {wall:9.4f} {spread:>15} {1 / wall:10.2f} "
            f"{worker.overall('cpu'):13.4f} {reward:>13}"
        )
    ours, *others = workers
    for trl in others:
        for clock, what in (("wall", "updates per second"), ("cpu", "updates per CPU second")):
            ratios = [
                b / a for a, b in zip(ours.per_round(clock), trl.per_round(clock), strict=True)
            ]
            print(
                f"Telescope / {trl.side}, {what}: {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f}-{max(ratios):.2f} over rounds)"
            )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--updates", type=int, default=10, help="updates per block")
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each worker")
    parser.add_argument("--gc", action="store_true", help="leave TRL its gc.collect()")
    args = parser.parse_args()
    sys.path[0] = str(ROOT)  # without it libraries that look for `trl` find this file
    show(run(args.rounds, args.updates, args.threads, args.gc), args.rounds, args.updates)
