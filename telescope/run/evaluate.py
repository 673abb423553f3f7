"""Accuracy on held-out prompts: sampled, greedy, per part, pass@k and maj@k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from telescope.algorithms import majority, pass_at_k
from telescope.build import GivenReward, build_actor, build_reward
from telescope.config import Config, EvalConfig
from telescope.data.build import build_held_out
from telescope.data.loader import PromptSet, last_match
from telescope.data.seeds import mix_seed
from telescope.errors import TelescopeError
from telescope.ledger.completions import Completion
from telescope.models.load import context_length
from telescope.roles.actor import Actor
from telescope.roles.protocols import ActorRole
from telescope.roles.reward import Reward
from telescope.run.eval_sets import EvalSet, named_sets, own_set
from telescope.run.saved import SavedRun, open_run

_MOST_VALUES = 50
"""Values of the column `eval.by`: each is a metric."""


@dataclass(frozen=True)
class Evaluation:
    """The metrics of an evaluation, and the answers that they count."""

    metrics: dict[str, float]
    completions: list[Completion]


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
    return evaluate_saved(open_run(Path(run), overrides, trusted=trusted), reward, rows).metrics


def evaluate_saved(
    saved: SavedRun,
    reward: GivenReward = None,
    rows: Sequence[dict[str, Any]] | None = None,
) -> Evaluation:
    """The same of a run that has been opened."""
    if reward is None:
        check_reward(saved)
    actor = build_actor(saved.config)
    saved.load_weights("actor", actor.model)
    actor.sampler.version = -1  # the sampler does not have these weights yet
    return evaluate_actor(actor, saved.config, reward, rows, saved.step)


def check_reward(saved: SavedRun) -> None:
    """Refuses a run whose reward is not in its config."""
    if saved.manifest.reward_in_python:
        run = saved.path.parent.parent
        raise TelescopeError(
            f"{run} was trained with the reward {', '.join(saved.manifest.reward)}, given in "
            "Python, not in its config.toml: "
            "call telescope.run.evaluate.evaluate_run(run, reward=...) with it"
        )


def evaluate_actor(
    actor: Actor,
    config: Config,
    reward: GivenReward = None,
    rows: Sequence[dict[str, Any]] | None = None,
    step: int = 0,
) -> Evaluation:
    """Evaluates an actor after `step` on the evaluation sets of a config, or on `rows`."""
    if rows is None:
        held_out = build_held_out(config, actor.tokenizer)
    else:
        held_out = PromptSet(rows, actor.tokenizer, config.data)
    scorer = build_reward(config, actor.tokenizer, actor.model.device, reward)
    scorer.step = step
    sets = [*own_set(held_out, config), *named_sets(config, actor.tokenizer)]
    if not sets:
        raise TelescopeError("there are no held-out prompts: set data.eval_files or eval.sets")
    check_column(config.eval.by, sets)
    for chosen in sets:
        chosen.prompts.check_context(
            context_length(actor.model), config.rollout.max_response_tokens
        )
    return evaluate_sets(actor, scorer, sets, config)


def evaluate(
    actor: ActorRole, reward: Reward, prompts: PromptSet | None, config: Config
) -> dict[str, float]:
    """Computes eval/* of the actor as it is. Without held-out prompts there are none.

    The same weights give the same numbers.
    """
    return evaluate_sets(actor, reward, own_set(prompts, config), config).metrics


def evaluate_sets(
    actor: ActorRole, reward: Reward, sets: Sequence[EvalSet], config: Config
) -> Evaluation:
    """Answers the prompts of every set; `reward` scores those without a reward of their own."""
    settings = config.eval
    metrics: dict[str, float] = {}
    completions: list[Completion] = []
    for chosen in sets:
        scorer = chosen.reward or reward
        scorer.step = reward.step
        answers = partial(_answers, actor, scorer, chosen, config)
        every_prompt = range(len(chosen.prompts))
        some = list(islice(cycle(every_prompt), settings.samples))
        sampled = answers("sampled", some)
        greedy = answers("greedy", every_prompt)
        found = _accuracy("sampled", sampled) | _accuracy("greedy", greedy)
        found |= _accuracy_of_parts(greedy, chosen)
        found |= _accuracy_by(greedy, chosen, settings.by)
        completions += [*sampled, *greedy]
        if settings.k:
            n = settings.n or settings.k
            index = [i for i in every_prompt for _ in range(n)]
            repeated = answers(f"pass@{settings.k}", index)
            found |= pass_and_majority(repeated, n, settings)
            completions += repeated
        metrics |= {f"{chosen.prefix}{name}": value for name, value in found.items()}
    return Evaluation(metrics, completions)


def check_column(by: str | None, sets: Sequence[EvalSet]) -> None:
    """Refuses an `eval.by` that no set has."""
    columns = {name for chosen in sets for name in chosen.prompts.data[0]}
    if by is not None and by not in columns:
        raise TelescopeError(
            f"eval.by = {by!r} is no column of the held-out prompts: "
            f"they have {', '.join(sorted(columns)) or 'none'}"
        )


def _answers(
    actor: ActorRole,
    reward: Reward,
    chosen: EvalSet,
    config: Config,
    kind: str,
    index: Sequence[int],
) -> list[Completion]:
    """One answer to each prompt in `index`.

    The scores are the task's own, without the shaping that training adds.
    """
    found: list[Completion] = []
    size = config.rollout.batch_size * config.rollout.n
    for first in range(0, len(index), size):
        seed = mix_seed(config.seed, first, 2)
        prompts = chosen.prompts.take(list(index[first : first + size]), seed=seed)
        batch = reward.score(actor.sample(prompts, greedy=kind == "greedy"), evaluation=True)
        for row, score in zip(batch.info, batch.scores, strict=True):
            found.append(
                Completion(
                    set=chosen.name,
                    kind=kind,
                    prompt_index=row.prompt_index,
                    prompt=row.prompt,
                    response=row.response.text,
                    score=score.total,
                    correct=chosen.is_correct(score.total),
                    parts=dict(score.parts),
                )
            )
    return found


# ---- what the answers amount to


def _accuracy(kind: str, answers: Sequence[Completion]) -> dict[str, float]:
    return {
        f"{kind}_accuracy": sum(each.correct for each in answers) / len(answers),
        f"{kind}_score": sum(each.score for each in answers) / len(answers),
    }


def _accuracy_of_parts(greedy: Sequence[Completion], chosen: EvalSet) -> dict[str, float]:
    """For each part of a reward with several: the share of answers that it calls correct.

    A part counts only the answers that it applies to.
    """
    correct: dict[str, list[bool]] = {}
    for each in greedy:
        for part, score in each.parts.items():
            correct.setdefault(part, []).append(chosen.is_correct(score))
    if len(correct) < 2:
        return {}
    return {f"greedy_part/{part}": sum(found) / len(found) for part, found in correct.items()}


def _accuracy_by(
    greedy: Sequence[Completion], chosen: EvalSet, column: str | None
) -> dict[str, float]:
    """The greedy accuracy of each value that a column of the data has."""
    if column is None or column not in chosen.prompts.data[0]:
        return {}
    groups: dict[str, list[bool]] = {}
    for each in greedy:
        value = chosen.prompts.data[each.prompt_index].get(column)
        groups.setdefault(str(value), []).append(each.correct)
    if len(groups) > _MOST_VALUES:
        raise TelescopeError(
            f"eval.by = {column!r} has {len(groups)} values, and each would be a metric: "
            f"use a column with at most {_MOST_VALUES}"
        )
    return {
        f"greedy_accuracy/{value}": sum(correct) / len(correct)
        for value, correct in sorted(groups.items())
    }


def pass_and_majority(
    answers: Sequence[Completion], n: int, config: EvalConfig
) -> dict[str, float]:
    """Computes pass@k and maj@k from n answers per prompt, in order.

    maj@k averages over the n // k disjoint groups of k answers to each prompt. A group is correct
    if the first answer with its most frequent text is.
    """
    k = config.k
    correct = [each.correct for each in answers]
    texts = [answer_of(each.response, config.answer) for each in answers]
    passed: list[float] = []
    agreed: list[bool] = []
    for start in range(0, len(correct), n):
        passed.append(pass_at_k(sum(correct[start : start + n]), n, k))
        for group in range(start, start + n - k + 1, k):
            winner = majority(texts[group : group + k])
            agreed.append(winner is not None and correct[group + winner])
    return {f"pass@{k}": sum(passed) / len(passed), f"maj@{k}": sum(agreed) / len(agreed)}


def answer_of(text: str, pattern: str | None) -> str | None:
    """Returns the part of a response that is compared in a vote.

    It is the whole text, or the last match of `pattern`; None if the pattern does not match.
    """
    if pattern is None:
        return text.strip()
    last = last_match(pattern, text)
    return None if last is None else last.strip()
