"""Train with a reward of your own.

    python examples/own_reward.py

A reward is a Python function. It gets the prompts, the responses and every other column of the data,
and returns one number per response. This one pays for answers that begin with 不对 ("no").
It trains the built-in tiny model, so it needs neither a GPU nor a download.
"""

from __future__ import annotations

import sys

from telescope import Config, Trainer


def doubt(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
    """1 for a response that begins with 不对, else 0."""
    return [float(text.startswith("不对")) for text in completions]


def main(steps: int = 20) -> None:
    config = Config.builtin(name="doubt", steps=steps, rollout={"batch_size": 64})
    trainer = Trainer(config, reward=doubt)
    trainer.fit()
    scores = [row["reward/score_mean"] for row in trainer.history() if "reward/score_mean" in row]
    print(f"mean reward: {scores[0]:.2f} in the first step, {scores[-1]:.2f} in the last")
    print(f"look at it: telescope view {config.run_dir}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
