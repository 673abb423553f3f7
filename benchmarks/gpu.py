"""Decode tokens/s and seconds per PPO update on one GPU, ours and each peer that is installed.

    python benchmarks/gpu.py

Every side is a worker in its own process (_gpu_worker.py) that keeps its models between
measurements. The workers take turns, one measurement each, forwards and backwards. A worker's first
is its warm-up: reported from the start of the process, in no median. Equal on all sides: the model,
bf16 forwards, the prompts as token ids, batch and limit. What differs is said under each table.
"""

import argparse
import contextlib
import datetime
import itertools
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).with_name("_gpu_worker.py")
LEARNING = {"lr": 1e-6, "clip": 0.2, "kl_coef": 0.05, "lam": 0.95}
SIDES = {
    "decode": ("telescope", "hf", "hf-static", "vllm"),
    "varied": ("telescope", "vllm"),
    "update": ("telescope", "telescope-vllm", "trl"),
}
NOTES = {
    "decode": """Sampled at temperature 1 from the whole distribution. telescope and vllm return \
each token's log-prob (vllm: flat, without
making text), hf and hf-static (static cache, compiled) do not. vllm's engine has a process of \
its own and 0.3 of the GPU's memory.""",
    "update": """One update: sample, score (how often a token occurs), values, reference, GAE, \
one epoch of one minibatch for actor and
critic, metrics. telescope: its defaults but for what is said above, so a ledger of 32 samples, \
bf16 weights with
float32 masters, gradients and Adam; no evaluation or checkpoint. telescope-vllm: the same with \
rollout.engine = "vllm". trl: bf16
weights and Adam, micro-batches of 64, generation by {} rows, no gradient checkpointing or \
clipping, its gc.collect() left in.""",
    "scaling": """GiB: in use / reserved at the peak. FLOP of an update, forward and backward: 6 \
per layer weight and token, 6 per weight
of the output head and response token (actor), 6 per query channel, layer and causal pair of \
tokens; divided by the phase's seconds.""",
}
CEILING = 790e12  # bf16 FLOP/s of a large matmul on an H200
BYTES_PER_WEIGHT = (
    2 * 14 + 6 + 2
)  # actor and critic: weight, master, Adam; one gradient at a time; reference
SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)
# sizes of Qwen2.5 (None: the model of --model), ties its embeddings?, points of (batch, response
# tokens)
SCALES = {
    "model": (None, None, [(64, 128), (256, 128), (1024, 128), (256, 512), (256, 2048)]),
    "0.5B": ((896, 24, 14, 2, 4864, 151936), True, [(256, 128)]),
    "1.5B": ((1536, 28, 12, 2, 8960, 151936), True, [(64, 128), (256, 128)]),
    "7B": ((3584, 28, 28, 4, 18944, 152064), False, [(256, 128)]),
}


class WorkerError(Exception):
    """What a side's line in the table says instead of figures."""


class Worker:
    """One side, as the parent sees it. Ready when made; what it starts ends with it."""

    def __init__(self, side: str, job: dict, args: Namespace) -> None:
        self.log = args.logs / f"{len(list(args.logs.iterdir()))}-{job['case']}-{side}.log"
        extra = {
            "vllm": args.vllm_path,
            "telescope-vllm": args.vllm_path,
            "trl": args.trl_path,
        }.get(side)
        path = os.pathsep.join(str(p) for p in (extra, ROOT, os.environ.get("PYTHONPATH")) if p)
        environment = os.environ | {
            "PYTHONPATH": path,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        command = [
            args.python_trl if side == "trl" else sys.executable,
            "-P",
            str(WORKER),
            side,
        ]  # -P: benchmarks/trl.py is not TRL
        job = job | {"spawned": time.time(), "folder": tempfile.mkdtemp(dir=args.scratch)}
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self.log.open("w"),
            "text": True,
        }
        self.process = subprocess.Popen(command, **pipes, env=environment, start_new_session=True)
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        try:
            self.setup = self.ask(
                json.dumps(job), max(args.timeout, 400) if "vllm" in side else args.timeout
            ).get("setup")
        except WorkerError:
            self.close()
            raise

    def _read(self) -> None:
        for line in itertools.chain(self.process.stdout, [""]):
            self.lines.put(line)

    def ask(self, line: str, timeout: float) -> dict:
        with contextlib.suppress(BrokenPipeError):  # the worker has ended, and its log says why
            print(line, file=self.process.stdin, flush=True)
        try:
            answer = json.loads(self.lines.get(timeout=timeout) or "{}")
        except queue.Empty:
            answer = {"late": f"no answer in {timeout:.0f} s"}
        if not answer or "late" in answer:
            words = [
                line.strip()
                for line in self.log.read_text(errors="replace").splitlines()
                if line.strip()
            ]
            answer["error"] = (
                f"{answer.get('late', 'ended')}; last in its log: "
                f"{words[-1] if words else 'nothing'}"
            )
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer

    def close(self) -> None:
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def measure(
    sides: list[str], job: dict, args: Namespace, keep=lambda results: None
) -> dict[str, dict[str, dict]]:
    """For each kind and side: setup, the first measurement, the rounds after it, and the error that
    ended it, if any.
    """
    results: dict[str, dict[str, dict]] = {
        kind: {side: {"rounds": []} for side in sides if side in SIDES[kind]}
        for kind in job["kinds"]
    }
    with contextlib.ExitStack() as at_the_end:
        workers: dict[str, Worker] = {}
        for number in range(args.rounds + 1):
            for side, kind in itertools.product(
                sides if number % 2 == 0 else sides[::-1], job["kinds"]
            ):
                if side not in SIDES[kind] or any(
                    "error" in of_kind.get(side, {}) for of_kind in results.values()
                ):
                    continue
                result = results[kind][side]
                print(
                    f"{job['batch']} prompts, {kind}: {side}, {number or 'start'}",
                    file=sys.stderr,
                    flush=True,
                )
                try:
                    if side not in workers:
                        workers[side] = Worker(side, job, args)
                        at_the_end.callback(workers[side].close)
                    result["setup"] = workers[side].setup
                    answer = workers[side].ask(kind, args.timeout)
                    result["rounds"].append(answer) if number else result.update(first=answer)
                    print(
                        f"  {answer['seconds']:.3f} s, "
                        f"{answer['tokens'] / answer['seconds']:,.0f} tokens/s",
                        file=sys.stderr,
                        flush=True,
                    )
                    keep(results)
                except (WorkerError, OSError) as error:
                    result["error"] = str(error)
                    print(f"  {error}; logs are in {args.logs}", file=sys.stderr, flush=True)
                    if side in workers:
                        workers[side].close()
    return results


def make_job(case: str, model: str, batch: int, kinds: dict[str, dict], args: Namespace) -> dict:
    """Everything a worker needs to know: prompts as tokens and as a file, ids that end an answer,
    settings.
    """
    from transformers import AutoTokenizer, GenerationConfig

    tokenizer, rng = AutoTokenizer.from_pretrained(args.folder), random.Random(0)
    texts = [
        f"What is {rng.randint(10, 99)} + {rng.randint(10, 99)}? Answer with the number only."
        for _ in range(batch)
    ]
    data = Path(tempfile.mkdtemp(dir=args.scratch)) / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), "utf-8")
    if tokenizer.chat_template:
        chats = [[{"role": "user", "content": text}] for text in texts]
        texts = [
            tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
            for chat in chats
        ]
    ids = [
        tokenizer(text, add_special_tokens=not tokenizer.chat_template).input_ids for text in texts
    ]
    ends = None
    with contextlib.suppress(OSError):
        ends = GenerationConfig.from_pretrained(args.folder).eos_token_id
    stop_ids = sorted(
        {
            tokenizer.eos_token_id,
            *(ends if isinstance(ends, list) else [] if ends is None else [ends]),
        }
    )
    text = {
        "prompts": ids,
        "data": str(data),
        "stop_ids": stop_ids,
        "counted": tokenizer("1", add_special_tokens=False).input_ids[-1],
    }
    text["pad"] = (
        tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    )
    shape = {"case": case, "model": model, "batch": batch, "kinds": kinds, "device": args.device}
    shape["tokens"] = max(kind["tokens"] for kind in kinds.values())
    return {**shape, **text, **LEARNING, "settings": args.set, "trl_rollout": args.trl_rollout}


def each(result: dict, key: str) -> list[float]:
    return [
        one["tokens"] / one["seconds"] if key == "tokens/s" else (one | one["metrics"])[key]
        for one in result["rounds"]
    ]


def median(result: dict, key: str, form: str) -> str:
    return f"{statistics.median(each(result, key)):{form}}"


def spread(result: dict, key: str, form: str) -> str:
    return f"{min(each(result, key)):{form}} to {max(each(result, key)):{form}}"


def memory(result: dict) -> str:
    every = [result["first"], *result["rounds"]]
    peak, reserved = (max(one[key] for one in every) for key in ("peak_gib", "reserved_gib"))
    peak = max(
        peak, *(one["metrics"].get("perf/peak_gib", 0.0) for one in every)
    )  # where the side counts anew within a measurement
    return f"{peak:.1f} / {reserved:.1f}" if reserved else "–"


def start_up(result: dict) -> str:
    return f"{result['first']['since_spawn']:.1f} / {result['first']['since_imports']:.1f}"


def row(*cells: object) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def head(*cells: str) -> str:
    return row(*cells) + "\n" + "|---" * len(cells) + "|"


def conditions(results: dict[str, dict], job: dict, args: Namespace) -> str:
    setups = [result["setup"] for result in results.values() if "setup" in result]
    versions = " and ".join(
        sorted(
            {f"torch {setup['torch']}, transformers {setup['transformers']}" for setup in setups}
        )
    )
    gpu = next((setup["gpu"] for setup in setups if "gpu" in setup), job["device"])
    prompt = f"prompts of {statistics.fmean(map(len, job['prompts'])):.0f} tokens"
    changed = f"telescope with {', '.join(args.set)}; " if args.set else ""
    machine = f"{datetime.date.today()}, {gpu}, {versions}"
    return f"{machine}; {args.label}, {prompt}; {changed}medians of {args.rounds} rounds"


def show(title: str, results: dict[str, dict], job: dict, args: Namespace) -> None:
    """One table of the sides: tokens/s first where they decode, seconds where they update."""
    figures = [("tokens/s", ",.0f", "response tokens/s"), ("seconds", ".3f", "s")]
    (key, form, unit), (key2, form2, unit2) = figures if job["case"] == "decode" else figures[::-1]
    print(f"\n### {title}\n\n{conditions(results, job, args)}, smallest to largest.\n")
    columns = (
        "peak GiB, in use / reserved",
        "first one, s: since the process began / since its imports",
        "telescope is faster by",
    )
    print(head("", unit, "rounds", unit2, "mean length", *columns))
    ours = results.get("telescope", {})
    for side, result in results.items():
        name = " ".join(filter(None, (side, result.get("setup", {}).get("version"))))
        if "error" in result or not result["rounds"]:
            print(row(name, result.get("error", "no rounds")[:200], *[""] * 6))
            continue
        numbers = [
            median(result, key, form),
            spread(result, key, form),
            median(result, key2, form2),
            median(result, "lengths_mean", ".1f"),
        ]
        rates = (
            [statistics.median(each(one, "tokens/s")) for one in (ours, result)]
            if ours.get("rounds") and side != "telescope"
            else None
        )
        print(
            row(
                name,
                *numbers,
                memory(result),
                start_up(result),
                f"{rates[0] / rates[1]:.2f}" if rates else "",
            )
        )
    if job["case"] == "update" and ours.get("rounds"):
        print("\n" + head("telescope's update", "median", "rounds"))
        for metric in sorted(ours["rounds"][-1]["metrics"]):
            print(row(f"`{metric}`", median(ours, metric, ",.4g"), spread(ours, metric, ",.4g")))
    print(f"\n{NOTES[job['case']].format(args.trl_rollout)}", flush=True)


def weights(shape: dict) -> dict[str, int]:
    """Weights of all layers' matrices, of the head, and altogether (norms and biases left out).

    The width of all queries.
    """
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    width = shape.get("head_dim") or hidden // heads
    attention = 2 * hidden * width * (heads + shape.get("num_key_value_heads", heads))
    layers = shape["num_hidden_layers"] * (attention + 3 * hidden * shape["intermediate_size"])
    vocabulary = hidden * shape["vocab_size"]
    return {
        "layers": layers,
        "head": vocabulary,
        "all": layers + vocabulary * (2 - shape["tie_word_embeddings"]),
        "queries": width * heads,
    }


def scaling(args: Namespace, keep) -> None:
    columns = (
        "decode tokens/s",
        "s per update",
        "rounds",
        "rollout s",
        "critic s",
        "actor s",
        "critic TFLOP/s",
    )
    columns += (
        "actor TFLOP/s",
        f"both, share of {CEILING / 1e12:.0f}",
        "`perf/mfu`",
        "update GiB",
        "first update, s: since the process began / since its imports",
    )
    print("\n### Scaling of telescope\n\n" + head("model", "batch x tokens", *columns), flush=True)
    where = ""
    for name in args.shapes.split(","):
        with tempfile.TemporaryDirectory(dir=args.scratch) as folder:
            sizes, tied, points = SCALES[name]
            label, points = f"{name}, random weights" if sizes else args.label, [*points]
            if sizes:
                shape = dict(zip(SIZES, sizes, strict=True), tie_word_embeddings=tied)
                job = {
                    "case": "make",
                    "model": folder,
                    "tokenizer": args.folder,
                    "shape": shape,
                    "device": args.device,
                }
                try:
                    Worker("make", job, args).close()
                except WorkerError as error:
                    print(row(label, "", str(error)[:200], *[""] * 11), flush=True)
                    continue
            for batch, tokens in points:
                result, job = measure_point(folder if sizes else args.folder, batch, tokens, args)
                keep(f"scaling {label} {batch} x {tokens}", result, job)
                print(row(label, f"{batch} x {tokens}", *point_cells(result, job)), flush=True)
                where = conditions({"telescope": result}, job, args)
                if (batch, tokens) == (256, 2048) and "out of memory" in result.get("error", ""):
                    points.append((64, 2048))
    print(f"\n{where}. {NOTES['scaling']}", flush=True)


def measure_point(model: str, batch: int, tokens: int, args: Namespace) -> tuple[dict, dict]:
    """The update's result and job.

    Of the decoder alone where weights and Adam states do not fit.
    """
    job = make_job("update", model, batch, {"update": {"tokens": tokens, "stop": False}}, args)
    job["shape"] = {"tie_word_embeddings": False} | json.loads(
        (Path(model) / "config.json").read_text("utf-8")
    )
    if weights(job["shape"])["all"] * BYTES_PER_WEIGHT > args.memory * 2**30:
        job |= {"case": "decode", "kinds": {"decode": job["kinds"]["update"]}}
    return measure(["telescope"], job, args)[job["case"]]["telescope"], job


def point_cells(result: dict, job: dict) -> list[str]:
    if "error" in result:
        return [result["error"][:100], *[""] * 11]
    if job["case"] == "decode":
        needed = weights(job["shape"])["all"] * BYTES_PER_WEIGHT / 2**30
        return [
            median(result, "tokens/s", ",.0f"),
            f"not run: weights and Adam states alone take {needed:.0f} GiB",
            *[""] * 8,
            memory(result),
            "",
        ]
    shape, size, lengths = (
        job["shape"],
        weights(job["shape"]),
        [len(ids) + job["tokens"] for ids in job["prompts"]],
    )
    flop = 6 * size["layers"] * sum(lengths) + 6 * shape["num_hidden_layers"] * size[
        "queries"
    ] * sum(n * n for n in lengths)
    flops = {
        "update_critic": flop,
        "update_actor": flop + 6 * size["head"] * job["batch"] * job["tokens"],
    }
    seconds = {
        phase: statistics.median(each(result, f"timing/{phase}")) for phase in ("rollout", *flops)
    }
    cells = [
        f"{job['batch'] * job['tokens'] / seconds['rollout']:,.0f}",
        median(result, "seconds", ".3f"),
        spread(result, "seconds", ".3f"),
    ]
    cells += [f"{value:.3f}" for value in seconds.values()] + [
        f"{flops[phase] / seconds[phase] / 1e12:.3g}" for phase in flops
    ]
    cells += [f"{sum(flops.values()) / sum(seconds[phase] for phase in flops) / CEILING:.3f}"]
    cells += [
        median(result, "perf/mfu", ".3f") if "perf/mfu" in result["rounds"][0]["metrics"] else "–"
    ]
    return [*cells, memory(result), start_up(result)]


def main(args: Namespace) -> None:
    args.label = args.model if args.model == "smollm2" else Path(args.model).resolve().name
    if args.model == "smollm2":
        from telescope.models.smollm import ensure_model

        args.model = ensure_model()
    args.folder = str(Path(args.model).resolve())
    raw: dict[str, object] = {"date": str(datetime.datetime.now()), "command": sys.argv}

    def keep(name: str, results: dict, job: dict) -> None:
        raw[name] = {
            "job": job | {"prompts": [len(ids) for ids in job["prompts"]]},
            "results": results,
        }
        if args.json:
            args.json.write_text(json.dumps(raw, indent=1), "utf-8")

    wanted = args.case.split(",")
    kinds = {
        name: {
            "tokens": args.varied_tokens if name == "varied" else args.tokens,
            "stop": name == "varied",
        }
        for name in wanted
    }
    for case, names in (("decode", ["decode", "varied"]), ("update", ["update"])):
        chosen = {name: kinds[name] for name in names if name in wanted}
        if not chosen:
            continue
        job = make_job(case, args.folder, args.batch, chosen, args)
        sides = [side for side in args.sides.split(",") if side in SIDES[case]]
        for name, results in measure(
            sides, job, args, lambda results, job=job: keep(job["case"], results, job)
        ).items():
            what = {
                "decode": "Decode, fixed length",
                "varied": "Decode until EOS",
                "update": "PPO update",
            }[name]
            limit = f"{'at most ' * kinds[name]['stop']}{kinds[name]['tokens']} tokens each"
            show(f"{what}: {args.batch} prompts, {limit}", results, job, args)
    if "scaling" in wanted:
        scaling(args, keep)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="HF folder")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument(
        "--tokens", type=int, default=128, help="of every response, where its length is fixed"
    )
    parser.add_argument(
        "--varied-tokens", type=int, default=1024, help="limit where EOS ends a response"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sides", default="telescope,telescope-vllm,hf,hf-static,vllm,trl")
    parser.add_argument(
        "--case", default="decode,varied,update", help="some of decode,varied,update,scaling"
    )
    parser.add_argument(
        "--scaling",
        action="store_const",
        const="scaling",
        dest="case",
        help="only that: --case scaling",
    )
    parser.add_argument("--shapes", default=",".join(SCALES), help="which of scaling's models")
    parser.add_argument(
        "--memory",
        type=float,
        default=139,
        help="GiB of the GPU: what a model needs at least decides whether scaling updates it",
    )
    parser.add_argument("--quick", action="store_true", help="2 rounds, telescope and hf")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of telescope's: ledger.samples=off",
    )
    parser.add_argument(
        "--trl-rollout", type=int, default=64, help="rows that TRL generates at a time"
    )
    parser.add_argument(
        "--vllm-path", help="PYTHONPATH entry for the vllm and telescope-vllm workers"
    )
    parser.add_argument("--trl-path", help="PYTHONPATH entry for the trl worker")
    parser.add_argument(
        "--python-trl", default=sys.executable, help="interpreter of the trl worker"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300,
        help="seconds for one answer; vLLM's start has at least 400",
    )
    parser.add_argument(
        "--logs",
        type=Path,
        help="folder for the workers' stderr; default: a temporary one that stays",
    )
    parser.add_argument("--json", type=Path, help="file for everything measured")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.sides = 2, "telescope,hf"
    known = {
        "sides": {*SIDES["decode"], *SIDES["update"]},
        "case": {"decode", "varied", "update", "scaling"},
        "shapes": {*SCALES},
    }
    for name, possible in known.items():
        if not {*getattr(options, name).split(",")} <= possible:
            parser.error(f"--{name} takes some of {','.join(sorted(possible))}")
    options.logs = options.logs or Path(tempfile.mkdtemp(prefix="telescope-gpu-logs-"))
    options.logs.mkdir(parents=True, exist_ok=True)
    sys.path[0] = str(ROOT)  # without it libraries that look for `trl` find benchmarks/trl.py
    with tempfile.TemporaryDirectory(prefix="telescope-gpu-") as options.scratch:
        main(options)
