"""TRL's PPOTrainer on the problems of a recipe, for some seconds.

    python -P benchmarks/_trl_arithmetic.py --model DIR --seconds 120
    python -P benchmarks/_trl_arithmetic.py --model DIR --seconds 720 \
        --recipe recipes/gsm8k.toml --recipe-set data.eval_files=data/gsm8k/held-out.parquet \
        --micro 32 --set local_rollout_forward_batch_size=32

The TRL side of benchmarks/learn.py. The recipe's problems, prompts, scorer and settings, as far as
TRL has them; its own environment, of which this file wants torch, transformers, trl, datasets,
pydantic and reasoning-gym. Progress goes to stderr, rows to --out as they come, and one line of
JSON to stdout at the end.

Where TRL leaves a choice, or trips:
- pad token: TRL takes every pad for padding, and this tokenizer pads with <|im_end|>, which ends
  every turn of the prompt. It gets another special token that no prompt has, and <|im_end|> stays
  what it is: stop_token = "eos".
- reward: TRL asks a model. It gets a module that decodes the ids and asks the scorer; prompts are
  padded to one width, so that it knows where the response begins. No missing_eos_penalty: the other
  side has none.
- minibatches: TRL steps its optimizer once in gradient_accumulation_steps micro-batches, whatever
  num_mini_batches says. One micro-batch per minibatch and an accumulation of 1 make a minibatch a
  step; with --micro the accumulation is put right by hand.
- precision: float32 weights, TF32 products. PPOConfig's bf16 reaches nothing in transformers 5,
  since PPOTrainer makes its own Accelerator; accelerate's environment variable does (--precision
  mixed: bfloat16 autocast in the update), but on a GPU the policy then collapsed, within ten
  updates at a rate of 5e-5 and within thirty at 1e-5 (one seed each). With bfloat16 weights, AdamW
  without float32 masters would lose most steps of 1e-5.
- gradient clipping: PPOTrainer has none; the recipe's is done before each of its optimizer steps.
- learning rates and warm-up: one AdamW over policy and value model, with a group and a rate each,
  handed to PPOTrainer.
- value model: AutoModelForSequenceClassification of the same folder, its head set to zero, so that
  V begins at 0.
- the end: PPOTrainer.train looks at no stop flag; a callback leaves it by an exception once the
  seconds are spent.
"""

import argparse
import ast
import contextlib
import importlib.metadata
import inspect
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RECIPE = ROOT / "recipes" / "smollm2-arithmetic.toml"
FOREVER = 1_000_000  # updates: the clock says when to stop
PACKAGES = ("torch", "transformers", "trl", "accelerate", "reasoning-gym")


class Enough(Exception):  # noqa: N818 -- not an error
    """The seconds are spent."""


def say(text):
    print(text, file=sys.stderr, flush=True)


def problems(config, tokenizer):
    """(training, held-out) prompts of the recipe, made and tokenised as Telescope does it."""
    from telescope.data.build import build_data

    return build_data(config, tokenizer)


def scorer_of(config):
    """f(texts, rows of the data): the recipe's reward of each text, a weighted sum."""
    import torch

    from telescope.build import build_reward

    reward = build_reward(config, None, torch.device("cpu"))

    def score(texts, rows):
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        given = {"completions": texts, "last_turns": texts, **columns}
        total = [0.0] * len(texts)
        for name, function in reward.functions.items():
            parameters = inspect.signature(function).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
            own = {key: value for key, value in given.items() if takes_all or key in parameters}
            weight = reward.weights.get(name, 1.0)
            paid = function(**own)
            total = [before + weight * more for before, more in zip(total, paid, strict=True)]
        return total

    return score


def write_tiny_model(folder, tokenizer_folder, seed=0):
    """A random Llama of 3 million weights, most of them embeddings, that reads the prompts as the
    real model does.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    ends = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=len(tokenizer), **sizes, **ends, tie_word_embeddings=True)
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def tokenizers(folder, config):
    """(Telescope's view of the prompts, TRL's tokenizer: left-padding, with a pad token that is in
    no prompt and ends nothing).
    """
    from transformers import AutoTokenizer

    plain, tokenizer = (
        AutoTokenizer.from_pretrained(folder),
        AutoTokenizer.from_pretrained(folder, padding_side="left"),
    )
    prompts = problems(config, plain)
    used = {token for half in prompts for row in half.ids for token in row} | {
        tokenizer.eos_token_id
    }
    free = [
        str(token)
        for number, token in sorted(tokenizer.added_tokens_decoder.items())
        if number not in used and token.special
    ]
    if not free:
        sys.exit(f"{folder}: its tokenizer has no special token left to pad with")
    tokenizer.pad_token = free[-1]  # the first is <|endoftext|>, which a model might write
    return prompts, tokenizer


def scoring_module(tokenizer, prompts, width, scorer):
    import torch

    class Scoring(torch.nn.Module):
        """What TRL asks of a reward model: `backbone` gives "hidden states", here the score at
        every position, and `score` reads them.
        """

        base_model_prefix = "backbone"

        def __init__(self):
            super().__init__()
            self.rows = {
                tuple(ids): row for ids, row in zip(prompts.ids, prompts.data, strict=True)
            }
            self.scores, self.lengths = [], []

        def backbone(self, input_ids, attention_mask, **_):
            real = [[i for i, m in enumerate(row) if m] for row in attention_mask.tolist()]
            ids = input_ids.tolist()
            asked = [
                self.rows[tuple(row[i] for i in at if i < width)]
                for row, at in zip(ids, real, strict=True)
            ]
            responses = [
                [row[i] for i in at if i >= width] for row, at in zip(ids, real, strict=True)
            ]
            scores = scorer(tokenizer.batch_decode(responses, skip_special_tokens=True), asked)
            self.scores += scores
            self.lengths += map(len, responses)
            column = torch.tensor(scores, dtype=torch.float32, device=input_ids.device)
            return SimpleNamespace(
                hidden_states=[column[:, None, None].expand(-1, input_ids.shape[1], 1)]
            )

        def score(self, hidden):
            return hidden

        def take(self):
            """Mean score, and tokens of a response, since the last call."""
            means = sum(self.scores) / len(self.scores), sum(self.lengths) / len(self.lengths)
            self.scores, self.lengths = [], []
            return means

    return Scoring()


def evaluate(policy, tokenizer, held_out, config, scorer, batch):
    """The two accuracies of telescope/evaluate.py, over responses that transformers generates."""
    import torch
    from transformers import GenerationConfig

    device, everything = policy.device, list(range(len(held_out)))
    samples = config.eval.samples
    sampled = (everything * -(-samples // len(everything)))[:samples]
    limits = {
        "max_new_tokens": config.rollout.max_response_tokens,
        "pad_token_id": tokenizer.pad_token_id,
    }
    limits["eos_token_id"] = tokenizer.eos_token_id
    kinds = {
        "sampled": (
            sampled,
            {
                "do_sample": True,
                "temperature": config.rollout.temperature,
                "top_k": 0,
                "top_p": 1.0,
            },
        ),
        "greedy": (everything, {"do_sample": False}),
    }
    was_training, result = policy.training, {}
    policy.eval()
    with torch.no_grad(), torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(config.seed)
        for kind, (index, choice) in kinds.items():
            right = 0
            for first in range(0, len(index), batch):
                rows = index[first : first + batch]
                padded = tokenizer.pad(
                    {"input_ids": [held_out.ids[i] for i in rows]}, return_tensors="pt"
                ).to(device)
                out = policy.generate(
                    input_ids=padded["input_ids"],
                    attention_mask=padded["attention_mask"],
                    generation_config=GenerationConfig(**limits, **choice),
                )
                texts = tokenizer.batch_decode(
                    out[:, padded["input_ids"].shape[1] :], skip_special_tokens=True
                )
                right += sum(
                    score >= config.eval.correct_score - 1e-9
                    for score in scorer(texts, [held_out.data[i] for i in rows])
                )
            result[kind] = right / len(index)
    policy.train(was_training)
    return result


class Clock:
    """Training seconds, without evaluations; a row of each update."""

    def __init__(self, limit, every, out):
        self.limit, self.every, self.out = limit, every, out
        self.rows, self.logs, self.away, self.step, self.due = [], {}, 0.0, 0, every

    def begin(self):
        self.began = time.perf_counter()

    def seconds(self):
        return time.perf_counter() - self.began - self.away if hasattr(self, "began") else 0.0

    def add(self, row):
        self.rows.append(row)
        if self.out:
            with open(self.out, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def callback_of(clock, scoring, evaluation, device):
    import torch
    from transformers import TrainerCallback

    class Tick(TrainerCallback):
        def on_train_begin(self, *_, **__):
            clock.begin()

        def on_log(self, *_, logs=None, **__):
            clock.logs = dict(logs or {})

        def on_step_end(self, *_, **__):
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds, logs = clock.seconds(), clock.logs
            clock.step += 1
            score, tokens = scoring.take()
            row = {"step": clock.step, "seconds": seconds, "score": score, "tokens": tokens}
            if "objective/kl" in logs:  # TRL's are sums over a response
                row |= {
                    "kl": logs["objective/kl"] / tokens,
                    "entropy": logs["objective/entropy"] / tokens,
                }
            last = seconds >= clock.limit
            if last or seconds >= clock.due:
                stopped = time.perf_counter()
                row |= evaluation()
                clock.away += time.perf_counter() - stopped
                clock.due = seconds + clock.every
            clock.add(row)
            if "greedy" in row or clock.step <= 3 or clock.step % 10 == 0:
                accuracy = (
                    f"  held out: greedy {row['greedy']:.3f} sampled {row['sampled']:.3f}"
                    if "greedy" in row
                    else ""
                )
                say(
                    f"TRL  update {clock.step}  {seconds:.1f} s of {clock.limit:g}  score "
                    f"{score:.3f}  tokens {tokens:.1f}{accuracy}"
                )
            if last:
                raise Enough

    return Tick()


def settings_of(args, config):
    """PPOConfig's arguments, and what besides them was chosen."""
    rollout, credit, actor, critic = config.rollout, config.credit, config.actor, config.critic
    batch = args.batch or rollout.batch_size * rollout.n
    minibatches = args.minibatches or actor.minibatches
    rows = -(-batch // minibatches)
    if rows * minibatches != batch:
        sys.exit(f"--batch {batch} does not divide into {minibatches} minibatches")
    micro = min(args.micro or rows, rows)
    if rows % micro:
        sys.exit(f"--micro {micro} does not divide a minibatch of {rows}")
    accumulate = rows // micro
    whole = (
        accumulate == 1
    )  # then a minibatch is what TRL cuts from one "device batch", and each one is a step
    settings = {
        "per_device_train_batch_size": batch if whole else micro,
        "gradient_accumulation_steps": 1 if whole else batch // micro,
        "num_mini_batches": minibatches,
        "num_ppo_epochs": args.epochs or actor.epochs,
        "total_episodes": FOREVER * batch,
        "local_rollout_forward_batch_size": batch,
        "response_length": rollout.max_response_tokens,
        "temperature": rollout.temperature,
        "stop_token": "eos",
        "missing_eos_penalty": None,
        "kl_coef": credit.kl_coef,
        "kl_estimator": "k3" if credit.kl_kind in ("k3", "low_var_kl") else "k1",
        "gamma": credit.gamma,
        "lam": credit.lam,
        "whiten_rewards": False,
        "cliprange": actor.clip_low,
        "cliprange_value": critic.clip_value or 1e9,
        "learning_rate": args.lr or actor.lr,
        "weight_decay": actor.weight_decay,
        "gradient_checkpointing": False,
        "bf16": args.precision == "mixed",
        "seed": args.seed,
        "report_to": "none",
        "disable_tqdm": True,
        "save_strategy": "no",
        "num_sample_generations": 0,
    }
    for pair in args.set:
        key, _, value = pair.partition("=")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = {"true": True, "false": False, "none": None}.get(value.lower(), value)
    scale = settings["learning_rate"] / actor.lr
    chosen = {
        "precision": args.precision,
        "critic_lr": args.critic_lr or critic.lr * scale,
        "warmup_updates": actor.warmup_steps,
        "schedule": actor.schedule,
        "clip_grad": actor.max_grad_norm if args.clip_grad is None else args.clip_grad,
        "accumulate": accumulate,
    }
    return settings, chosen


def train(args, config):
    import torch
    import transformers
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        DataCollatorWithPadding,
        PrinterCallback,
        set_seed,
    )
    from trl.experimental.ppo import PPOConfig, PPOTrainer, ppo_trainer

    imported = time.perf_counter()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device(
        "cuda" if torch.cuda.is_available() and config.device != "cpu" and not args.tiny else "cpu"
    )
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32, where TRL computes in float32
    if not args.gc:
        ppo_trainer.gc = SimpleNamespace(collect=lambda: 0)
    set_seed(args.seed)
    (prompts, held_out), tokenizer = tokenizers(args.model, config)
    width = max(map(len, prompts.ids))
    scorer = scorer_of(config)
    settings, chosen = settings_of(args, config)
    say(
        f"TRL  {len(prompts)} problems to train on, {len(held_out)} held out, prompts of {width} "
        f"tokens, pad {tokenizer.pad_token!r}"
    )
    say(f"TRL  {settings | chosen}")

    dtype = torch.bfloat16 if args.precision == "bfloat16" else torch.float32
    policy, reference = (
        AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).to(device) for _ in range(2)
    )
    for model in (policy, reference):
        model.generation_config.pad_token_id = tokenizer.pad_token_id
    value_model = AutoModelForSequenceClassification.from_pretrained(
        args.model, num_labels=1, dtype=dtype
    ).to(device)
    torch.nn.init.zeros_(value_model.score.weight)
    scoring = scoring_module(tokenizer, prompts, width, scorer)
    clock = Clock(args.seconds, args.eval_every or max(args.seconds / 8, 1e-3), args.out)
    batch = settings["local_rollout_forward_batch_size"]

    def evaluation():
        return evaluate(policy, tokenizer, held_out, config, scorer, min(batch, 512))

    def rate(update):
        if update < chosen["warmup_updates"]:
            return (update + 1) / chosen["warmup_updates"]
        spent = min(clock.seconds() / args.seconds, 1.0)
        return {
            "constant": 1.0,
            "linear": 1 - spent,
            "cosine": 0.5 * (1 + math.cos(math.pi * spent)),
        }[chosen["schedule"]]

    groups = [
        {
            "params": list(policy.parameters()),
            "lr": settings["learning_rate"],
            "weight_decay": settings["weight_decay"],
        },
        {
            "params": list(value_model.parameters()),
            "lr": chosen["critic_lr"],
            "weight_decay": config.critic.weight_decay,
        },
    ]
    optimizer = torch.optim.AdamW(groups, fused=True)
    if chosen["clip_grad"]:

        def clip(*_):
            for group in groups:
                torch.nn.utils.clip_grad_norm_(group["params"], chosen["clip_grad"])

        optimizer.register_step_pre_hook(clip)
    with tempfile.TemporaryDirectory() as output:
        trainer = PPOTrainer(
            args=PPOConfig(output_dir=output, use_cpu=device.type == "cpu", **settings),
            processing_class=tokenizer,
            model=policy,
            ref_model=reference,
            reward_model=scoring,
            value_model=value_model,
            train_dataset=Dataset.from_dict({"input_ids": prompts.ids}),
            data_collator=DataCollatorWithPadding(
                tokenizer, padding="max_length", max_length=width
            ),
            optimizers=(optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, rate)),
            callbacks=[callback_of(clock, scoring, evaluation, device)],
        )
        trainer.remove_callback(PrinterCallback)
        if chosen["accumulate"] > 1:
            trainer.accelerator.gradient_accumulation_steps = chosen["accumulate"]
            trainer.accelerator.gradient_state.plugin_kwargs["sync_with_dataloader"] = False
        chosen["autocast"] = trainer.accelerator.mixed_precision
        before = evaluation()
        clock.add({"step": 0, "seconds": 0.0, **before})
        say(
            f"TRL  before: greedy {before['greedy']:.3f} sampled {before['sampled']:.3f}; autocast "
            f"{chosen['autocast']}"
        )
        startup = time.perf_counter() - imported
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with contextlib.suppress(Enough):
            trainer.train()
    last = clock.rows[-1]
    return {
        "before": before,
        "after": {kind: last[kind] for kind in before},
        "updates": clock.step,
        "seconds": last["seconds"],
        "evaluation_seconds": clock.away,
        "startup_seconds": startup,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if device.type == "cuda" else None,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "seed": args.seed,
        "settings": settings | chosen | {"pad_token": tokenizer.pad_token, "prompt_width": width},
        "versions": {name: version(name) for name in PACKAGES},
        "curve": clock.rows,
    }


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return getattr(sys.modules.get(package.replace("-", "_")), "__version__", "?")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--model", help="folder of SmolLM2-135M-Instruct (default: Telescope's cache)"
    )
    parser.add_argument(
        "--recipe", type=Path, default=RECIPE, help="recipe, or the config.toml of a run"
    )
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="of training; evaluations do not count"
    )
    parser.add_argument(
        "--eval-every",
        type=float,
        help="seconds of training between evaluations (default: an eighth)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="file that rows are appended to as they come")
    parser.add_argument(
        "--lr", type=float, help="of the policy; the value model's keeps its ratio to it"
    )
    parser.add_argument("--critic-lr", type=float)
    parser.add_argument(
        "--clip-grad",
        type=float,
        help="norm for the gradients of policy and value model, each; 0: none, as in TRL",
    )
    parser.add_argument("--batch", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--minibatches", type=int)
    parser.add_argument(
        "--micro", type=int, help="rows of one forward and backward (default: a whole minibatch)"
    )
    parser.add_argument("--precision", choices=["mixed", "float32", "bfloat16"], default="float32")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="anything else of PPOConfig"
    )
    parser.add_argument(
        "--recipe-set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a setting of the recipe, e.g. data.eval_files=FILE",
    )
    parser.add_argument(
        "--gc", action="store_true", help="leave TRL its two gc.collect() per update"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="on the CPU, a random model with this tokenizer, few and short responses",
    )
    args = parser.parse_args()
    sys.path[:] = [
        str(ROOT),
        *(path for path in sys.path if Path(path or ".").resolve() != HERE),
    ]  # trl is not benchmarks/trl.py
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if args.precision == "mixed" else "no"
    from telescope.config import load_config

    small = [
        ("rollout.batch_size", "16"),
        ("rollout.max_response_tokens", "8"),
        ("eval.prompts", "16"),
        ("eval.samples", "16"),
    ]
    if load_config(args.recipe).data.task:
        small.append(("data.size", "64"))
    given = [tuple(pair.split("=", 1)) for pair in args.recipe_set]
    config = load_config(args.recipe, [*(small if args.tiny else []), *given]).model_copy(
        update={"seed": args.seed}
    )
    args.model = args.model or str(Path.home() / ".cache" / "telescope" / "SmolLM2-135M-Instruct")
    with tempfile.TemporaryDirectory() as folder:
        if args.tiny:
            args.model = str(write_tiny_model(folder, args.model))
        result = train(args, config)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
