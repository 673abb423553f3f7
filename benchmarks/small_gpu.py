"""PPO steps within a limit of GPU memory: does a model fit, and what does a step take?

    python benchmarks/small_gpu.py --gib 24 --shape 7B --set model.lora_rank=16 --set model.quantize=nf4
    python benchmarks/small_gpu.py --gib 24 --model path/to/model --set model.gradient_checkpointing=true

The allocator of this process may take `--gib` and no more, on a larger card too, and the sampler is
told that the card ends there. CUDA's own memory is not counted; that is why half a GiB stays free.
Without --model the weights are random, of Qwen2.5's sizes. They are made in host memory, as a loaded
model's are. Responses do not end early, so every row has its full length. Medians leave out the
first step. On a CPU there is no limit, and memory is that of the process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

from telescope.build import LocalRoles, build_local_roles
from telescope.config import Config, load_config
from telescope.credit import compute_advantages
from telescope.data.arithmetic import make_tokenizer
from telescope.data.loader import Prompts
from telescope.run.timing import Timer
from telescope.scale.plan.job import Job, Rates
from telescope.scale.plan.memory import memory_of
from telescope.scale.plan.shapes import GIB, SHAPES, Shape, read_shape

TINY = Shape(16, 2, 2, 1, 8, 32, 64, True)
PHASES = ("rollout", "values", "reference", "update_critic", "update_actor")
CUDA_OWN = 0.5
"""GiB of the card that CUDA itself takes."""


# ---- the model


def write_folder(folder: Path, shape: Shape) -> None:
    """config.json of a Qwen2 of this shape, and a tokenizer."""
    tokenizer = make_tokenizer()
    config = Qwen2Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        vocab_size=max(shape.vocabulary, len(tokenizer)),
        tie_word_embeddings=shape.tied,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@torch.no_grad()
def random_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A model of the folder's config in host memory. `device` draws its weights, one by one."""
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(config)  # its buffers are computed
    model.tie_weights()
    torch.manual_seed(0)
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
        else:
            weight.copy_(0.02 * torch.randn(weight.shape, device=device, dtype=dtype))
    return model


# ---- the steps


def prompts(config: Config, tokens: int, seed: int) -> Prompts:
    count = config.rollout.batch_size
    drawn = torch.randint(3, 20, (count, tokens), generator=torch.Generator().manual_seed(seed))
    texts = [""] * count
    repeated = [row for row in drawn.tolist() for _ in range(config.rollout.n)]
    rows = {"prompt": texts, "prompt_index": list(range(count)), "data": [{}] * count}
    info = {
        name: [v for v in values for _ in range(config.rollout.n)] for name, values in rows.items()
    }
    return Prompts(repeated, info, seed)


def reward(response_ids: list[list[int]], **_: Any) -> list[float]:
    return [len(set(ids)) / len(ids) for ids in response_ids]


def step(roles: LocalRoles, config: Config, given: Prompts) -> dict[str, float]:
    """One step of the trainer's loop, without ledger and log."""
    timer = Timer(roles.actor.device, roles.graph_memory)
    with timer("rollout"):
        batch = roles.actor.generate_sequences(given)
    with timer("values"):
        batch = roles.critic.compute_values(batch)
    with timer("reference"):
        batch = roles.reference.compute_log_prob(batch)
    batch = roles.reward.compute_reward(batch)
    batch = compute_advantages(batch, config.credit, kl_coef=config.credit.kl_coef)
    with timer("update_critic"):
        roles.critic.update_critic(batch)
    with timer("update_actor"):
        roles.actor.update_actor(batch)
    return timer.metrics(batch, 0.0)


def limit_memory(gib: float, device: torch.device) -> None:
    """Lets this process take `gib` of the card, CUDA's own share included."""
    usable = int((gib - CUDA_OWN) * GIB)
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(usable / total, 1.0), device)

    def free_and_total(*_: Any) -> tuple[int, int]:
        return usable - torch.cuda.memory_reserved(device), usable

    torch.cuda.mem_get_info = free_and_total


# ---- the row


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Figures of the steps, or what went wrong."""
    device = torch.device(args.device)
    if args.model is None:
        write_folder(folder, TINY if args.shape == "tiny" else SHAPES[args.shape])
    path = Path(args.model) if args.model else folder
    settings = {
        "model.path": str(path),
        "model.dtype": "bfloat16" if device.type == "cuda" else "float32",
        "device": args.device,
        "data.max_prompt_tokens": args.prompt_tokens,
        "rollout.batch_size": args.rows,
        "rollout.max_response_tokens": args.response_tokens,
        "steps": args.steps,
    }
    settings |= dict(pair.split("=", 1) for pair in args.set)
    config = load_config(None, [(name, str(value)) for name, value in settings.items()])
    if device.type == "cuda":
        limit_memory(args.gib, device)
    result: dict[str, Any] = {"settings": args.set, "planned_gib": planned(config, path, args)}
    try:
        dtype = getattr(torch, config.model.dtype)
        model = None if args.model else random_model(path, dtype, device)
        if model is not None and not config.model.lora_rank:
            model.save_pretrained(path)  # the critic reads weights of its own
        roles = build_local_roles(config, reward, model)
        del model
        roles.actor.sampler.stop = torch.tensor([-1], device=device)
        result["loading_gib"] = allocated(device)
        result["steps"] = []
        for number in range(args.steps):
            given = prompts(config, args.prompt_tokens, seed=number)
            metrics = step(roles, config, given)
            result["steps"].append(metrics)
            result["allocated_gib"] = max(
                result.get("allocated_gib", 0.0), metrics["perf/peak_gib"]
            )
        result["reserved_gib"] = reserved(device)
    except torch.OutOfMemoryError as error:
        result["error"] = f"out of memory: {str(error).splitlines()[0][:120]}"
    return result


def planned(config: Config, path: Path, args: argparse.Namespace) -> float:
    """The peak that `telescope plan` computes."""
    shape = read_shape(str(path))
    if shape is None:
        return float("nan")
    sizes = (args.prompt_tokens, args.response_tokens)
    return memory_of(Job(config, 1, shape, shape, *sizes, Rates(gib=args.gib))).peak / GIB


def allocated(device: torch.device) -> float:
    return torch.cuda.max_memory_allocated(device) / GIB if device.type == "cuda" else 0.0


def reserved(device: torch.device) -> float:
    """The most that was reserved at once. The timer's own reset does not touch it."""
    if device.type != "cuda":
        return 0.0
    return torch.cuda.memory_reserved(device) / GIB


def table(result: dict[str, Any], args: argparse.Namespace) -> str:
    """A Markdown table of one row."""
    columns = ["model", "GiB", "rows × tokens", "settings", *PHASES, "s per step", "tokens/s"]
    columns += ["peak GiB", "reserved GiB", "planned GiB"]
    name = args.model or f"{args.shape}, random weights"
    tokens = f"{args.rows} × ({args.prompt_tokens} + {args.response_tokens})"
    cells = [name, f"{args.gib:g}", tokens, ", ".join(args.set) or "the defaults"]
    if "error" in result:
        cells += [result["error"], *[""] * (len(PHASES) + 3), f"{result['planned_gib']:.1f}"]
    else:
        later = result["steps"][1:] or result["steps"]

        def median(metric: str) -> float:
            return statistics.median(row[metric] for row in later)

        cells += [f"{median(f'timing/{phase}'):.2f}" for phase in PHASES]
        cells += [f"{median('timing/step'):.2f}", f"{median('perf/tokens_per_s'):,.0f}"]
        cells += [f"{result[f'{kind}_gib']:.1f}" for kind in ("allocated", "reserved", "planned")]
    lines = [columns, ["---"] * len(columns), cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=24.0, help="GiB of the card (%(default)g)")
    parser.add_argument("--shape", choices=["tiny", *SHAPES], default="1.5B")
    parser.add_argument("--model", help="a model folder instead of random weights")
    parser.add_argument("--rows", type=int, default=64, help="rows per step (%(default)d)")
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--response-tokens", type=int, default=512)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="section.key=value")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the figures of every step here too")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args, Path(folder))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1), "utf-8")
    print(table(result, args))
    where = f"{torch.cuda.get_device_name()}, " if args.device.startswith("cuda") else ""
    print(f"\n{where}torch {torch.__version__}, {args.steps} steps")


if __name__ == "__main__":
    main()
