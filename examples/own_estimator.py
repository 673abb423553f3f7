"""An estimator of your own, with a setting of its own, in a file outside the package.

    python examples/own_estimator.py        # trains, explains one token, writes the page

The same from the command line:

    telescope train --credit.estimator examples/own_estimator.py:fading_outcome --credit.fade 0.8
    telescope explain runs/arithmetic --lang en

The outcome of the response is paid to every token, the less the farther the token is from the end:

    A[i] = fade^(T−1−i) · o      o: the sum of the response's rewards, T: its tokens

The definition has two halves. `rules` is the arithmetic on plain numbers: explanations and the page
recompute every token with it. The decorated function is the same on tensors: training uses it.
Config, ledger, explain and page take everything else from the definition.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pydantic import Field

from telescope.algorithms import Actions, Rule, Settings, Term, Words, estimator
from telescope.algorithms.definitions.base import Token
from telescope.algorithms.definitions.notation import num, par, subscript

if TYPE_CHECKING:
    from telescope.algorithms import Credit


class FadeSettings(Settings):
    """Becomes `credit.fade`: checked, listed in errors, recorded in the ledger."""

    fade: float = Field(0.9, gt=0, le=1, description="weight lost per token before the end")


def advantage(response: Actions, settings: FadeSettings, k: int) -> float:
    """A_k of one response. Its tokens are steps 0, 1, …; those of a tool are not among them."""
    to_the_end = len(response) - 1 - k
    return settings.fade**to_the_end * response.outcome


def same_as_advantage(response: Actions, settings: FadeSettings, k: int) -> float:
    """Without a critic nothing is trained on the returns: they are the advantages."""
    return response["advantages"][k]


def explain(token: Token, settings: FadeSettings) -> list[Term]:
    """The lines for A, with numbers in place of symbols. Without it the inputs are listed."""
    if not token.has("token_level_rewards"):
        return []
    outcome = token.actions.outcome
    to_the_end = len(token.actions) - 1 - token.k
    formula = f"A{subscript(token.index)} = fade^(T−1−i)·o"
    numbers = f"{num(settings.fade)}^{to_the_end}·{par(outcome)}"
    result = advantage(token.actions, settings, token.k)
    return [Term("advantage", formula, numbers, result, [outcome])]


@estimator(
    formula="A[i] = fade^(T−1−i)·o",
    settings=FadeSettings,
    rules=(
        Rule("advantages", ("token_level_rewards",), advantage),
        Rule("returns", ("advantages",), same_as_advantage),
    ),
    terms=explain,
    words=Words(
        zh="结果发给每个 token，离结尾越远越少",
        en="the outcome is paid to every token, the less the farther it is from the end",
        kid_zh="整条回答的分发给每个词，离结尾越远分得越少。",
        kid_en="Every word gets a part of the answer's score, the less the farther from the end.",
    ),
)
def fading_outcome(batch: Any, settings: FadeSettings) -> Credit:
    """The tensor function: [B, T] in, [B, T] out, exactly 0 where the mask is 0."""
    import torch  # here, so that explain and the page need no torch

    from telescope.algorithms import Credit

    mask = batch.mask  # [B, T]
    outcome = (batch["token_level_rewards"] * mask).sum(-1, keepdim=True)  # [B, 1]
    written = mask.long().cumsum(-1)  # [B, T]: 1 at the first token that the policy wrote
    to_the_end = written[:, -1:] - written  # [B, T]
    advantages = torch.where(mask, settings.fade**to_the_end * outcome, 0.0)
    return Credit(advantages, advantages)


def main(steps: int = 20) -> None:
    from telescope import Config, Trainer, ledger
    from telescope.explain.terminal import render
    from telescope.viewer.report import write_report

    config = Config.builtin(
        name="fading",
        steps=steps,
        rollout={"batch_size": 64},
        credit={"estimator": f"{__file__}:fading_outcome", "fade": 0.8},
    )
    Trainer(config).fit()
    sample = ledger.samples(config.run_dir, steps)[0]
    for lang in ("en", "zh"):
        print(render(sample, token=1, lang=lang))
    print(write_report(config.run_dir, config.run_dir / "report.html"))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
