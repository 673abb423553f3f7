"""Accuracy on held-out prompts: sampled, greedy, and of several samples together."""

from __future__ import annotations

from telescope.algorithms import majority, pass_at_k
from telescope.config import Config, EvalConfig
from telescope.data.loader import PromptSet, last_match
from telescope.data.seeds import mix_seed
from telescope.roles.actor import Actor
from telescope.roles.reward import Reward


def evaluate(
    actor: Actor, reward: Reward, prompts: PromptSet | None, config: Config
) -> dict[str, float]:
    """eval/* metrics; empty where there are no held-out prompts. The same weights give the same numbers."""
    if prompts is None:
        return {}
    everything = list(range(len(prompts)))
    sampled = (everything * -(-config.eval.samples // len(everything)))[: config.eval.samples]
    metrics: dict[str, float] = {}
    for kind, index in (("sampled", sampled), ("greedy", everything)):
        scores, _ = _answers(actor, reward, prompts, index, config, greedy=kind == "greedy")
        metrics[f"eval/{kind}_accuracy"] = sum(_right(scores, config)) / len(scores)
        metrics[f"eval/{kind}_score"] = sum(scores) / len(scores)
    if config.eval.k:
        n = config.eval.n or config.eval.k
        scores, texts = _answers(
            actor, reward, prompts, [i for i in everything for _ in range(n)], config
        )
        metrics |= together(_right(scores, config), texts, n, config.eval)
    return metrics


def together(right: list[bool], texts: list[str], n: int, config: EvalConfig) -> dict[str, float]:
    """pass@k and maj@k of prompts with n samples each, one prompt after the other; `right` and `texts` are the samples'.

    maj@k is taken over as many separate lots of k samples as there are; the answer that most of a lot gave counts as its first giver's.
    """
    k, prompts = config.k, range(0, len(right), n)
    passed = [pass_at_k(sum(right[first : first + n]), n, k) for first in prompts]
    answers = [answer_of(text, config.answer) for text in texts]
    lots = [first + k * lot for first in prompts for lot in range(n // k)]
    chosen = [(lot, majority(answers[lot : lot + k])) for lot in lots]
    agreed = [place is not None and right[lot + place] for lot, place in chosen]
    return {f"eval/pass@{k}": sum(passed) / len(passed), f"eval/maj@{k}": sum(agreed) / len(agreed)}


def answer_of(text: str, pattern: str | None) -> str | None:
    """What votes are compared by: the text, or the pattern's last match in it; none where it does not match."""
    if pattern is None:
        return text.strip()
    last = last_match(pattern, text)
    return None if last is None else last.strip()


def _answers(
    actor: Actor,
    reward: Reward,
    prompts: PromptSet,
    index: list[int],
    config: Config,
    *,
    greedy: bool = False,
) -> tuple[list[float], list[str]]:
    """Scores and texts of responses to the prompts at `index`. The task's own scores: nothing of how training shapes them."""
    scores: list[float] = []
    texts: list[str] = []
    size = config.rollout.batch_size * config.rollout.n
    for first in range(0, len(index), size):
        seed = mix_seed(config.seed, first, 2)
        batch = reward.score(
            actor.sample(prompts.take(index[first : first + size], seed=seed), greedy=greedy)
        )
        scores += batch.info["score"]
        texts += batch.info["response"]
    return scores, texts


def _right(scores: list[float], config: Config) -> list[bool]:
    return [score >= config.eval.correct_score - 1e-9 for score in scores]
