"""The built-in job with every estimator and every loss, same responses per step.

    python benchmarks/estimators.py

Each runs from the same model over the same number of responses, 256 a step: 256 prompts once, or 64
prompts four times where responses of one prompt are compared. Everything else is the built-in
recipe's, learning rates included: they were chosen for GAE and PPO's clip, so this shows that each
of them learns, not which is best. Losses run with GAE; value losses other than the recipe's are
named «value».

Writes one JSON object per run (accuracies before and after, the mean score every tenth of the way,
seconds) to --out as it goes, skips the runs that are there already, and prints the table of
docs/algorithms.md.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

from telescope import Config, Trainer
from telescope.algorithms import ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES

GROUPS = {"rollout": {"batch_size": 64, "n": 4}}
BARE = {
    "credit": {"whiten": False},
    "actor": {"entropy_coef": 0.0},
}  # tokens without credit are left alone, not pushed apart
OWN = {
    "gdpo": {"credit": {"kl_coef": 0.0}, "actor": {"kl_loss_coef": 0.01}},
    "last_token": BARE,
    "attention": {**BARE, "reward": {"attention": f"{Path(__file__).resolve()}:looked_at"}},
    "kl_penalty": {"actor": {"beta_target": 0.01}},
    "clip_cov": {"actor": {"cov_share": 0.002}},
    "kl_cov": {"actor": {"cov_share": 0.002}},
}


def looked_at(response_ids):
    """Where the verifier looks: the verdict at the beginning and the sum, which is the fifth token
    (是 的 ， 等于 2 ！).
    """
    return [[float(t in (0, 4)) for t in range(len(ids))] for ids in response_ids]


def runs() -> dict[str, dict]:
    """Name of a run -> what differs from the built-in recipe."""
    made = {
        f"estimator {name}": {
            "credit": {"estimator": name},
            **(GROUPS if ESTIMATORS[name].needs.groups else {}),
        }
        for name in ESTIMATORS
    }
    made |= {f"loss {name}": {"actor": {"loss": name}} for name in POLICY_LOSSES}
    made |= {f"value {name}": {"critic": {"loss": name}} for name in VALUE_LOSSES if name != "mse"}
    for name, changes in made.items():
        for section, values in OWN.get(name.split()[1], {}).items():
            changes[section] = {**changes.get(section, {}), **values}
    return made


def train(changes: dict, steps: int | None, seed: int, folder: str) -> dict:
    if steps is not None:
        changes = {**changes, "steps": steps}
    config = Config.builtin(
        dir=folder, seed=seed, ledger={"samples": "off"}, checkpoint={"every": 0}, **changes
    )
    began = time.perf_counter()
    trainer = Trainer(config)
    trainer.fit()
    seconds, rows = time.perf_counter() - began, trainer.history()
    scores = [row["reward/score_mean"] for row in rows if "reward/score_mean" in row]
    tenth = max(len(scores) // 10, 1)
    accuracy = [row["eval/greedy_accuracy"] for row in rows if "eval/greedy_accuracy" in row]
    sampled = [row["eval/sampled_accuracy"] for row in rows if "eval/sampled_accuracy" in row]
    return {
        "steps": config.steps,
        "seconds": round(seconds, 1),
        "greedy": [accuracy[0], accuracy[-1]],
        "sampled": [sampled[0], sampled[-1]],
        "scores": [
            round(sum(scores[i : i + tenth]) / len(scores[i : i + tenth]), 4)
            for i in range(0, len(scores), tenth)
        ],
    }


def drawn(scores: list[float]) -> str:
    """Each score from 0 to 1 as a bar."""
    return "".join("▁▂▃▄▅▆▇█"[min(int(8 * score), 7)] for score in scores)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], help="names of estimators or losses")
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("estimators.jsonl"))
    chosen = parser.parse_args()
    lines = chosen.out.read_text("utf-8").splitlines() if chosen.out.exists() else []
    done = {(row["run"], row["seed"]): row for row in map(json.loads, lines)}
    for name, changes in runs().items():
        if (name, chosen.seed) in done or (chosen.only and name.split()[1] not in chosen.only):
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = {
                "run": name,
                "seed": chosen.seed,
                **train(changes, chosen.steps, chosen.seed, folder),
            }
        done[name, chosen.seed] = row
        with chosen.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    print(
        "\n| run | held-out accuracy, sampled | greedy | mean score, by tenths of the run | "
        "seconds |\n|---|---|---|---|---|"
    )
    for row in done.values():
        curve = drawn(row["scores"]) + " " + " ".join(f"{score:.2f}" for score in row["scores"])
        print(
            f"| {row['run']} | {row['sampled'][1]:.3f} | {row['greedy'][1]:.3f} | {curve} | "
            f"{row['seconds']:.0f} |"
        )


if __name__ == "__main__":
    main()
