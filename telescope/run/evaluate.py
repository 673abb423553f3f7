"""Accuracy on held-out prompts: sampled, greedy, pass@k and maj@k."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from telescope.algorithms import majority, pass_at_k
from telescope.build import GivenReward, build_actor, build_data, build_reward
from telescope.config import Config, EvalConfig
from telescope.data.loader import PromptSet, last_match
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.roles.protocols import ActorRole, RewardRole
from telescope.run.saved import SavedRun, open_run


def evaluate_run(
    run: Path | str,
    reward: GivenReward = None,
    overrides: Sequence[tuple[str, str]] = (),
    rows: Sequence[dict[str, Any]] | None = None,
    *,
    trusted: bool = False,
) -> dict[str, float]:
    """Computes eval/* of a run's newest checkpoint.

    `overrides` change some of the run's settings. `rows`, like those of its data, replace its
    held-out prompts. If the run's reward was given to Trainer in Python, pass it here too.
    `trusted`: the run may name code that this user has not trained with.
    """
    return evaluate_saved(open_run(Path(run), overrides, trusted=trusted), reward, rows)


def evaluate_saved(
    saved: SavedRun,
    reward: GivenReward = None,
    rows: Sequence[dict[str, Any]] | None = None,
) -> dict[str, float]:
    """The same of a run that has been opened."""
    run = saved.path.parent.parent
    config = saved.config
    actor = build_actor(config)
    saved.load_weights("actor", actor.model)
    actor.sampler.version = -1  # the sampler does not have these weights yet
    if rows is None:
        _, held_out = build_data(config, actor.tokenizer)
    else:
        held_out = PromptSet(rows, actor.tokenizer, config.data)
    if held_out is None:
        raise TelescopeError(
            f"{run} has no held-out prompts: set data.eval_files in {run / 'config.toml'}"
        )
    if saved.manifest.reward_in_python and reward is None:
        raise TelescopeError(
            f"{run} was trained with the reward {', '.join(saved.manifest.reward)}, given in "
            "Python, not in its config.toml: "
            "call telescope.run.evaluate.evaluate_run(run, reward=...) with it"
        )
    scorer = build_reward(config, actor.tokenizer, actor.model.device, reward)
    scorer.step = saved.step
    return evaluate(actor, scorer, held_out, config)


def evaluate(
    actor: ActorRole, reward: RewardRole, prompts: PromptSet | None, config: Config
) -> dict[str, float]:
    """Computes eval/* of the actor as it is. Without held-out prompts there are none.

    The same weights give the same numbers.
    """
    if prompts is None:
        return {}
    every_prompt = range(len(prompts))
    sampled = list(islice(cycle(every_prompt), config.eval.samples))
    greedy = list(every_prompt)
    metrics: dict[str, float] = {}
    for kind, index in (("sampled", sampled), ("greedy", greedy)):
        scores, _ = _answers(actor, reward, prompts, index, config, greedy=kind == "greedy")
        correct = _correct(scores, config)
        metrics[f"eval/{kind}_accuracy"] = sum(correct) / len(scores)
        metrics[f"eval/{kind}_score"] = sum(scores) / len(scores)
    if config.eval.k:
        n = config.eval.n or config.eval.k
        repeated = [i for i in every_prompt for _ in range(n)]
        scores, texts = _answers(actor, reward, prompts, repeated, config)
        metrics |= pass_and_majority(_correct(scores, config), texts, n, config.eval)
    return metrics


def pass_and_majority(
    correct: Sequence[bool], texts: Sequence[str], n: int, config: EvalConfig
) -> dict[str, float]:
    """Computes pass@k and maj@k. `correct` and `texts` hold n responses per prompt, in order.

    maj@k averages over the n // k disjoint groups of k responses to each prompt. A group is
    correct if the first response with its most frequent answer is.
    """
    k = config.k
    answers = [answer_of(text, config.answer) for text in texts]
    passed: list[float] = []
    agreed: list[bool] = []
    for start in range(0, len(correct), n):
        passed.append(pass_at_k(sum(correct[start : start + n]), n, k))
        for group in range(start, start + n - k + 1, k):
            winner = majority(answers[group : group + k])
            agreed.append(winner is not None and correct[group + winner])
    return {f"eval/pass@{k}": sum(passed) / len(passed), f"eval/maj@{k}": sum(agreed) / len(agreed)}


def answer_of(text: str, pattern: str | None) -> str | None:
    """Returns the part of a response that is compared in a vote.

    It is the whole text, or the last match of `pattern`; None if the pattern does not match.
    """
    if pattern is None:
        return text.strip()
    last = last_match(pattern, text)
    return None if last is None else last.strip()


def _answers(
    actor: ActorRole,
    reward: RewardRole,
    prompts: PromptSet,
    index: Sequence[int],
    config: Config,
    *,
    greedy: bool = False,
) -> tuple[list[float], list[str]]:
    """Scores and texts of one response to each prompt in `index`.

    The scores are the task's own, without the shaping that training adds.
    """
    scores: list[float] = []
    texts: list[str] = []
    size = config.rollout.batch_size * config.rollout.n
    for first in range(0, len(index), size):
        seed = mix_seed(config.seed, first, 2)
        chosen = prompts.take(list(index[first : first + size]), seed=seed)
        batch = reward.score(actor.sample(chosen, greedy=greedy), evaluation=True)
        scores += [own.total for own in batch.scores]
        texts += [row.response.text for row in batch.info]
    return scores, texts


def _correct(scores: Sequence[float], config: Config) -> list[bool]:
    return [score >= config.eval.correct_score - 1e-9 for score in scores]
