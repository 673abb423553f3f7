"""Where the time goes from the start of a process to its first finished PPO update.

    python benchmarks/start.py

Every run is a process of its own. The first may find files that nobody has read yet, and kernels
that nobody has compiled yet: it has its own column; the others go into a median. Python may keep
the bytecode of what it imports, as it does unless it is told not to: PYTHONDONTWRITEBYTECODE is
taken out of the environment. An installation by pip has it from the beginning.

--importtime shows what is imported instead, and how long each module takes.
"""

import argparse
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAVY = (
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.tensor",
    "accelerate",
    "pandas",
    "scipy",
    "sklearn",
    "torchvision",
)


def child(job: dict) -> None:
    """One start.

    Prints [phase, when it was over] pairs as one line of JSON, and how many modules there are in
    the end.
    """
    marks = [["Python started", time.time()]]

    def mark(phase: str) -> None:
        marks.append([phase, time.time()])

    def marked(owner: object, name: str, phase: str) -> None:
        function = getattr(owner, name)

        def timed(*args, **kwargs):
            result = function(*args, **kwargs)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            mark(phase)
            return result

        setattr(owner, name, timed)

    from telescope.config import load_config

    config = load_config(None, [(key, str(value)) for key, value in job["settings"].items()])
    mark("settings read")
    from telescope.run.startup import preload

    with preload(config):  # as `telescope train` does
        import torch

        mark("torch imported")
        import telescope.models  # noqa: F401

        mark("transformers imported")
        from telescope import build, trainer
        from telescope.roles import factory
        from telescope.run import lifecycle

        mark("the rest of telescope imported")
    for name, phase in [
        ("choose_device", "device chosen"),
        ("load_policy", "actor loaded"),
        ("load_critic", "critic loaded"),
        ("make_actor", "actor made, and the reference"),
        ("Critic", "critic made"),
    ]:
        marked(build, name, phase)
    marked(factory, "load_tokenizer", "tokenizer loaded")
    marked(factory, "make_sampler", "sampler made")
    marked(lifecycle, "build_roles", "roles built")
    marked(lifecycle, "build_data", "prompts tokenised")
    run = trainer.Trainer(
        config, reward=lambda response_ids, **_: [float(len(set(ids))) for ids in response_ids]
    )
    mark("trainer made")
    roles = run.roles
    for role, name, phase in [
        (roles.actor, "generate_sequences", "first rollout"),
        (roles.critic, "compute_values", "first values"),
        (roles.reference, "compute_log_prob", "first reference"),
        (roles.critic, "update_critic", "first update of the critic"),
        (roles.actor, "update_actor", "first update of the actor"),
    ]:
        marked(role, name, phase)

    def stop(*_):
        mark("first update done")
        print(
            "\n"
            + json.dumps(
                {
                    "marks": marks,
                    "modules": len(sys.modules),
                    "heavy": [name for name in HEAVY if name in sys.modules],
                }
            ),
            flush=True,
        )
        os._exit(0)  # no checkpoint

    run._after_step = stop
    run.fit()


def start(args: argparse.Namespace, *options: str) -> tuple[dict, str]:
    """One run's phases, [name, seconds since the process began], and what it wrote to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "prompts.jsonl"
        rows = (
            {"prompt": f"What is {i % 90 + 10} + {i * 7 % 90 + 10}? Answer with the number only."}
            for i in range(args.batch)
        )
        data.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
        settings = {
            "dir": folder,
            "device": args.device,
            "steps": 1000,
            "checkpoint.every": 0,
            "log.every": 1000,
        }
        settings |= {
            "model.path": args.model,
            "model.dtype": args.dtype,
            "data.files": json.dumps([str(data)]),
        }
        settings |= {"rollout.batch_size": args.batch, "rollout.max_response_tokens": args.tokens}
        settings |= dict(pair.split("=", 1) for pair in args.set)
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {
            "PYTHONPATH": path,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [
            sys.executable,
            "-P",
            *options,
            __file__,
            "--child",
            json.dumps({"settings": settings}),
        ]
        began = time.time()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(done.stderr[-4000:] or done.stdout[-4000:])
    result = json.loads(done.stdout.splitlines()[-1])
    result["marks"] = [[phase, when - began] for phase, when in result["marks"]]
    return result, done.stderr


def phases(args: argparse.Namespace) -> None:
    results = [start(args)[0] for _ in range(args.runs)]
    later = results[1:] or results
    heavy = ", ".join(results[-1]["heavy"]) or "nothing heavy"
    modules = f"{results[-1]['modules']} modules, with {heavy}"
    print(
        f"{args.model}, {args.batch} prompts, {args.tokens} tokens; {modules}; seconds since the "
        "process began:\n"
    )
    print(
        f"| phase is over | first run | median of {len(later)} more | of which its own "
        "|\n|---|---|---|---|"
    )
    before = 0.0
    for number, (phase, first) in enumerate(results[0]["marks"]):
        median = statistics.median(result["marks"][number][1] for result in later)
        print(f"| {phase} | {first:.2f} | {median:.2f} | {median - before:.2f} |")
        before = median


def imports(args: argparse.Namespace) -> None:
    """The heaviest modules by their own time, without what they import in turn."""
    result, log = start(args, "-X", "importtime")
    own: collections.Counter[str] = collections.Counter()
    for microseconds, name in re.findall(
        r"^import time: +(\d+) \| +\d+ \| +(\S+)$", log, re.MULTILINE
    ):
        own[name] += int(microseconds)
    packages: collections.Counter[str] = collections.Counter()
    for name, microseconds in own.items():
        packages[name.partition(".")[0]] += microseconds
    print(f"{result['modules']} modules at the end, {sum(own.values()) / 1e6:.2f} s of importing\n")
    for title, counter in (("module", own), ("package", packages)):
        print(f"| {title} | own ms |\n|---|---|")
        print(
            "".join(
                f"| {name} | {microseconds / 1e3:.0f} |\n"
                for name, microseconds in counter.most_common(25)
            )
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2", help="smollm2, builtin, or an HF folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128, help="of a response, at most")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of telescope's: ledger.samples=off",
    )
    parser.add_argument(
        "--importtime", action="store_true", help="the 25 heaviest modules and packages"
    )
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
    elif options.importtime:
        imports(options)
    else:
        phases(options)
