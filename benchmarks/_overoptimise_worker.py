"""What benchmarks/overoptimise.py runs in processes of their own.

`reward JOB` trains the reward model, `policy JOB β` does one PPO run.

JOB is a JSON file: recipe and settings of the runs, folders, sizes. Nothing here decides what the
results mean.
"""

import gc
import importlib.metadata
import itertools
import json
import math
import os
import platform
import random
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from telescope import Trainer, __version__, ledger
from telescope.build import build_actor
from telescope.config import Config, load_config
from telescope.data import gym
from telescope.data.loader import PromptSet
from telescope.models.load import load_reward_model, load_tokenizer, quiet
from telescope.roles.factory import choose_device, resolve_model
from telescope.roles.reward_model import RewardModel
from telescope.run.lifecycle import Interrupted

FORMS = (
    "{n}",
    "{n}.",
    "The answer is {n}.",
    "The final answer is {n}.",
    "{e} = {n}",
    "{e} = {n}.",
    "Here is the solution: \n{e} = {n}.",
)
"""How SmolLM2-135M-Instruct writes an answer n to a problem e, where it writes one."""


# ---- pairs


@dataclass(frozen=True)
class Candidate:
    """A response to a prompt."""

    text: str
    ids: list[int]
    """As sampled, or the text's own with EOS."""
    score: float
    """The task's own."""
    kind: str
    """sampled, right, or the name of a near miss."""


@dataclass(frozen=True)
class Pair:
    prompt_ids: list[int]
    preferred: Candidate
    rejected: Candidate


def near_misses(entry: dict[str, Any], chance: random.Random) -> dict[str, int]:
    """Wrong numbers close to the truth, by what is wrong with them."""
    truth, terms = int(entry["answer"]), entry["metadata"]["expression"].split()
    found = {
        "off by a few": truth + chance.choice((-1, 1)) * chance.randint(1, 9),
        "off by tens": truth + chance.choice((-1, 1)) * chance.choice((10, 20, 30)),
        "wrong sign": -truth,
        "digits swapped": int(math.copysign(int(str(abs(truth))[::-1]), truth)),
    }
    if len(terms) == 3:
        found["other operation"] = int(terms[0]) + int(terms[2]) * (-1 if terms[1] == "+" else 1)
    return {kind: number for kind, number in found.items() if number != truth}


def written(entry: dict[str, Any], chance: random.Random, wrong: int = 3) -> list[tuple[str, str]]:
    """(text, kind): the right answer once, and `wrong` near misses, each in a form of its own."""
    misses = list(near_misses(entry, chance).items())
    numbers = [("right", int(entry["answer"])), *chance.sample(misses, min(wrong, len(misses)))]
    return [
        (chance.choice(FORMS).format(e=entry["metadata"]["expression"], n=number), kind)
        for kind, number in numbers
    ]


def draw_pair(
    prompt_ids: list[int], candidates: Sequence[Candidate], chance: random.Random
) -> Pair | None:
    """Two candidates that the task scores differently, drawn at random: the higher score is
    preferred. None where all score alike.
    """
    unequal = [(a, b) for a, b in itertools.permutations(candidates, 2) if a.score > b.score]
    return Pair(prompt_ids, *chance.choice(unequal)) if unequal else None


def scorer_of(config: Config) -> Any:
    return gym.scorer(config.data.task, config.data.options, config.data.answer)


def unseen_rows(config: Config, count: int) -> list[dict[str, Any]]:
    """Further problems of the task: none that PPO trains on (the first `data.size`), none that is
    held out.
    """
    data = config.data
    used, _ = gym.rows(data.task, data.options, data.size, data.instruction)
    more, _ = gym.rows(data.task, data.options, data.size + count, data.instruction)
    taken = {row["entry"]["question"] for row in used}
    return [row for row in more if row["entry"]["question"] not in taken][:count]


def make_pairs(
    config: Config, rows: list[dict[str, Any]], samples: int, chance: random.Random
) -> tuple[list[Pair], list[list[Candidate]]]:
    """A pair for each problem, drawn from `samples` responses of the start policy and a few that
    are written here; and those pools.
    """
    actor, scorer = build_actor(config), scorer_of(config)
    tokenizer, prompts = actor.tokenizer, PromptSet(rows, actor.tokenizer, config.data)
    pools: list[list[Candidate]] = []
    per_call = max(config.rollout.batch_size // samples, 1)
    for first in range(0, len(prompts), per_call):
        index = range(first, min(first + per_call, len(prompts)))
        batch = actor.sample(prompts.take(index, repeat=samples, seed=first))
        for place, number in enumerate(index):
            own = slice(place * samples, (place + 1) * samples)
            found = [
                (row.response.text, list(row.response.ids), "sampled") for row in batch.info[own]
            ]
            for text, kind in written(prompts.data[number]["entry"], chance):
                found.append(
                    (
                        text,
                        [
                            *tokenizer(text, add_special_tokens=False).input_ids,
                            tokenizer.eos_token_id,
                        ],
                        kind,
                    )
                )
            entry = prompts.data[number]["entry"]
            scores = scorer([text for text, _, _ in found], [entry] * len(found))
            pools.append(
                [
                    Candidate(text, ids, score, kind)
                    for (text, ids, kind), score in zip(found, scores, strict=True)
                ]
            )
    pairs = [draw_pair(ids, pool, chance) for ids, pool in zip(prompts.ids, pools, strict=True)]
    assert all(pair is not None for pair in pairs)  # every pool has a right answer and a wrong one
    return pairs, pools


# ---- the reward model


def bradley_terry(preferred: Tensor, rejected: Tensor) -> Tensor:
    """−log σ(r_w − r_l), mean over pairs. Bradley and Terry 1952; for reward models Ouyang et al.

    2022, arXiv:2203.02155.
    """
    return -logsigmoid(preferred - rejected).mean()


def scores_of(model: Any, rows: Sequence[list[int]]) -> Tensor:
    """r [B] of prompt + response, read at each row's last token: its EOS, or where it was cut off.

    That is where Telescope's RewardModel reads it. transformers' own pooling looks for the last
    token that is not pad, and would step back over an EOS that is the pad token too. Padding is on
    the right, where a causal model cannot see it.
    """
    lengths = torch.tensor([len(row) for row in rows], device=model.device)
    input_ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)  # [B, L]
    for i, row in enumerate(rows):
        input_ids[i, : len(row)] = torch.tensor(row)
    input_ids = input_ids.to(model.device)
    mask = (
        torch.arange(input_ids.shape[1], device=model.device) < lengths[:, None]
    ).long()  # [B, L]
    hidden = model.base_model(
        input_ids=input_ids, attention_mask=mask, use_cache=False
    ).last_hidden_state  # [B, L, H]
    return (
        model.score(hidden[torch.arange(len(rows), device=model.device), lengths - 1])
        .squeeze(-1)
        .float()
    )


@torch.no_grad()
def score_all(model: Any, rows: Sequence[list[int]], size: int = 256) -> list[float]:
    return [
        score
        for first in range(0, len(rows), size)
        for score in scores_of(model, rows[first : first + size]).tolist()
    ]


def train_reward_model(
    source: str,
    pairs: Sequence[Pair],
    *,
    epochs: int,
    lr: float,
    batch: int,
    seed: int,
    device: torch.device,
    say: Callable[[str], None],
) -> Any:
    """A sequence classifier with one output on the policy's backbone, in float32.

    The rate warms up over a tenth, then falls to 0.
    """
    from transformers import AutoModelForSequenceClassification

    torch.manual_seed(seed)  # the head starts at random
    with quiet():
        model = AutoModelForSequenceClassification.from_pretrained(
            source, num_labels=1, dtype=torch.float32
        ).to(device)
    model.eval()  # no dropout, in training too
    updates = epochs * math.ceil(len(pairs) / batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    warmup = max(updates // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda k: min((k + 1) / warmup, (updates - k) / max(updates - warmup, 1))
    )
    order, done, began = random.Random(seed), 0, time.monotonic()
    for _ in range(epochs):
        shuffled = order.sample(list(pairs), len(pairs))
        for first in range(0, len(shuffled), batch):
            chosen = shuffled[first : first + batch]
            rows = [pair.prompt_ids + pair.preferred.ids for pair in chosen] + [
                pair.prompt_ids + pair.rejected.ids for pair in chosen
            ]
            scores = scores_of(model, rows)  # [2B]
            loss = bradley_terry(scores[: len(chosen)], scores[len(chosen) :])
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            done += 1
            if done % max(updates // 10, 1) == 0 or done == updates:
                say(
                    f"reward model: update {done}/{updates}  loss {loss.item():.3f}  "
                    f"{time.monotonic() - began:.0f} s"
                )
    return model


def pair_accuracy(model: Any, pairs: Sequence[Pair]) -> tuple[float, dict[str, list[float]]]:
    """Share of pairs whose preferred response scores higher.

    And for each kind of rejected response, that share and their number.
    """
    preferred = score_all(model, [pair.prompt_ids + pair.preferred.ids for pair in pairs])
    rejected = score_all(model, [pair.prompt_ids + pair.rejected.ids for pair in pairs])
    right = [float(a > b) for a, b in zip(preferred, rejected, strict=True)]
    by_kind: dict[str, list[float]] = {}
    for pair, is_right in zip(pairs, right, strict=True):
        by_kind.setdefault(pair.rejected.kind, []).append(is_right)
    return sum(right) / len(right), {
        kind: [sum(of) / len(of), len(of)] for kind, of in sorted(by_kind.items())
    }


def save_reward_model(model: Any, tokenizer: Any, folder: Path) -> None:
    with quiet():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def saved_scores(
    folder: Path, rows: Sequence[tuple[list[int], list[int]]], tokenizer: Any, device: torch.device
) -> list[float]:
    """Scores of (prompt ids, response ids) by the saved folder, loaded and read as a run with
    reward.model does.
    """
    function = RewardModel(
        load_reward_model(str(folder), device), load_tokenizer(str(folder)), tokenizer
    )
    if not function.same_tokens:
        raise SystemExit(
            f"{folder}: its tokenizer is not the policy's, so that the sampled ids would not be "
            "what it reads"
        )
    blank = [""] * len(rows)
    return function(
        prompts=blank,
        completions=blank,
        prompt_ids=[p for p, _ in rows],
        response_ids=[r for _, r in rows],
    )


def reward_stage(job: dict[str, Any]) -> dict[str, Any]:
    """Pairs, the reward model and what it is worth, in job['reward_model'] and beside it."""
    began = time.monotonic()
    config = make_config(job)
    device, source, chance = (
        choose_device(config.device),
        resolve_model(config).path,
        random.Random(job["seed"]),
    )
    count = job["pairs"] + job["held_out_pairs"]
    rows = unseen_rows(config, count)
    say(
        f"pairs: {len(rows)} problems, {job['samples']} responses each by {config.model.path}, on "
        f"{device}"
    )
    pairs, pools = make_pairs(config, rows, job["samples"], chance)
    gc.collect()  # the policy is not needed any more
    if device.type == "cuda":
        torch.cuda.empty_cache()
    kept = len(pairs) - job["held_out_pairs"]
    train, held_out = pairs[:kept], pairs[kept:]
    sampled = [candidate for pool in pools for candidate in pool if candidate.kind == "sampled"]
    kinds = Counter(
        f"{'sampled' if p.preferred.kind == 'sampled' else 'written'} over {p.rejected.kind}"
        for p in pairs
    )
    say(
        f"pairs: {len(train)} to train on, {len(held_out)} held out: {dict(kinds.most_common())}  "
        f"{time.monotonic() - began:.0f} s"
    )

    model = train_reward_model(
        source,
        train,
        epochs=job["epochs"],
        lr=job["lr"],
        batch=job["batch"],
        seed=job["seed"],
        device=device,
        say=say,
    )
    held_pools = [
        (pair.prompt_ids, pool) for pair, pool in zip(held_out, pools[kept:], strict=True)
    ]
    by_start = [
        ids + candidate.ids
        for ids, pool in held_pools
        for candidate in pool
        if candidate.kind == "sampled"
    ]
    spread = torch.tensor(score_all(model, by_start)).std().item()
    if spread > 1e-6:
        with torch.no_grad():
            model.score.weight /= spread
    folder, tokenizer = Path(job["reward_model"]), load_tokenizer(source)
    save_reward_model(model, tokenizer, folder)

    some = [
        (pair.prompt_ids, c.ids) for pair in held_out[:64] for c in (pair.preferred, pair.rejected)
    ]
    trained = score_all(model, [p + r for p, r in some])
    difference = max(
        abs(a - b)
        for a, b in zip(trained, saved_scores(folder, some, tokenizer, device), strict=True)
    )
    say(
        "reward model: saved; largest difference between its training forward and reward.model "
        f"{difference:.1e}"
    )
    if difference > 0.02:  # of scores whose standard deviation is 1
        raise SystemExit(
            "the saved reward model does not score what was trained: nothing that follows would "
            "mean anything"
        )

    accuracy, by_kind = pair_accuracy(model, held_out)
    start = score_all(model, by_start)
    means = {
        name: _mean(
            score_all(model, [ids + c.ids for ids, pool in held_pools for c in pool if keep(c)])
        )
        for name, keep in (
            ("right", lambda c: c.kind == "right"),
            ("near_misses", lambda c: c.kind not in ("right", "sampled")),
        )
    }
    found = {
        "pairs": len(train),
        "held_out_pairs": len(held_out),
        "kinds": dict(kinds.most_common()),
        "epochs": job["epochs"],
        "lr": job["lr"],
        "train_accuracy": pair_accuracy(model, train)[0],
        "held_out_accuracy": accuracy,
        "held_out_by_rejected": by_kind,
        "scores": {"start_policy": _mean(start), **means},
        "scaled_by": 1 / spread if spread > 1e-6 else 1.0,
        "alignment": difference,
        "start_accuracy": _mean([float(c.score >= 1) for c in sampled]),
        "seconds": round(time.monotonic() - began, 1),
        "machine": machine(device),
        "versions": versions(),
    }
    say(
        f"reward model: right on {accuracy:.1%} of {len(held_out)} held-out pairs; "
        f"{json.dumps(by_kind)}"
    )
    return found


# ---- PPO


class Measured(Trainer):
    """A run whose curves are wanted and not its weights."""

    def save(self) -> None:
        self.ledger.wait()


def policy_stage(job: dict[str, Any], beta: float) -> None:
    """PPO against the reward model alone; the task's own scores are measured with weight 0."""
    gym_score = scorer_of(make_config(job, []))

    def right(last_turns: Sequence[str], entry: Sequence[dict[str, Any]]) -> list[float]:
        return [float(score >= 1) for score in gym_score(last_turns, entry)]

    measured = [
        ("reward.model", job["reward_model"]),
        ("reward.weights", "{gym_score = 0.0, right = 0.0}"),
    ]
    named = [("name", f"beta-{beta:g}"), ("dir", job["runs"]), ("credit.kl_coef", repr(beta))]
    config = make_config(job, [*measured, *named])
    trainer = Measured(config, reward={"gym_score": gym_score, "right": right})
    trainer.held_out = None  # its evaluation would count what the reward model says as accuracy
    try:
        trainer.fit()
    except Interrupted as stopped:
        say(str(stopped))
    (config.run_dir / "examples.json").write_text(
        json.dumps(examples(trainer), ensure_ascii=False), "utf-8"
    )


def examples(trainer: Trainer, count: int = 3) -> list[dict[str, Any]]:
    """Responses of the last recorded step that the reward model scores highest among those that the
    task gives 0.
    """
    recorded = ledger.steps(trainer.config.run_dir)
    if not recorded:
        return []
    wrong = [
        sample
        for sample in ledger.samples(trainer.config.run_dir, recorded[-1])
        if sample.parts["gym_score"] == 0
    ]
    wrong.sort(key=lambda sample: -sample.parts["model"])
    distinct = list({sample.response: sample for sample in reversed(wrong)}.values())[::-1][:count]
    data, tokenizer, model = (
        trainer.dataloader.data,
        trainer.roles.actor.tokenizer,
        trainer.roles.reward.functions["model"],
    )
    found = []
    for sample in distinct:
        entry, prompt_ids = data.data[sample.prompt_index]["entry"], data.ids[sample.prompt_index]
        plain = [
            *tokenizer(entry["answer"], add_special_tokens=False).input_ids,
            tokenizer.eos_token_id,
        ]
        of_truth = model(
            prompts=[""], completions=[""], prompt_ids=[prompt_ids], response_ids=[plain]
        )[0]
        found.append(
            {
                "step": sample.step,
                "problem": entry["metadata"]["expression"],
                "answer": entry["answer"],
                "response": sample.response,
                "truncated": bool(sample.truncated),
                "rm_score": sample.parts["model"],
                "rm_score_of_answer": of_truth,
            }
        )
    return found


# ---- a model for --smoke and tests, and the rest


def tiny_model(folder: Path) -> Path:
    """A random Llama of a few thousand weights that reads chats character by character.

    Its pad token is its EOS, as SmolLM2's.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<eos>", "<unk>", *sorted(string.digits + string.ascii_letters + " \n=+-.:,'")]
    inner = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<eos>", eos_token="<eos>", unk_token="<unk>"
    )
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    ends = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": 0}
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(0)
        LlamaForCausalLM(
            LlamaConfig(vocab_size=len(words), max_position_embeddings=256, **sizes, **ends)
        ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_config(job: dict[str, Any], more: Sequence[tuple[str, str]] = ()) -> Config:
    settings = [(key, value) for key, value in job["settings"]]
    if job["tiny"]:
        folder = Path(job["tiny"])
        settings.append(
            (
                "model.path",
                str(folder if (folder / "config.json").is_file() else tiny_model(folder)),
            )
        )
    return load_config(Path(job["recipe"]), [*settings, *more])


def machine(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        memory = f"{properties.total_memory / 2**30:.0f} GiB"
        return f"{properties.name}, {memory}, {os.cpu_count()} CPU cores"
    return f"CPU, {platform.machine()}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    others = {
        name: importlib.metadata.version(name)
        for name in ("torch", "transformers", "reasoning-gym")
    }
    return {"telescope": __version__, **others}


def say(message: str) -> None:
    print(message, flush=True)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(len(values), 1)


def main() -> None:
    stage, path, *rest = sys.argv[1:]
    job = json.loads(Path(path).read_text("utf-8"))
    if stage == "reward":
        found = reward_stage(job)
        Path(job["reward_file"]).write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    else:
        policy_stage(job, float(rest[0]))


if __name__ == "__main__":
    main()
