"""An estimator of your own, in a file outside the package.

    telescope train --credit.estimator examples/own_estimator.py:fading_outcome --credit.fade 0.9

The outcome of the response is paid to every token, the less the farther the token is from the end:

    A_t = fade^(T−1−t) · o      o: the sum of the response's rewards, T: its tokens

The definition has two halves. `rules` is the arithmetic on plain numbers: explanations and the page
recompute every token with it. The decorated function is the same on tensors: training uses it.
"""

from __future__ import annotations

import torch
from pydantic import Field

from telescope.algorithms import Actions, Credit, Rule, Settings, Words, estimator


class FadeSettings(Settings):
    fade: float = Field(0.9, gt=0, le=1, description="weight lost per token before the end")


def advantage(response: Actions, settings: FadeSettings, k: int) -> float:
    """A_k of one response. Its tokens are steps 0, 1, …; those of a tool are not among them."""
    to_the_end = len(response) - 1 - k
    return settings.fade**to_the_end * response.outcome


def same_as_advantage(response: Actions, settings: FadeSettings, k: int) -> float:
    return response["advantages"][k]


@estimator(
    formula="A_t = fade^(T−1−t)·o",
    settings=FadeSettings,
    rules=(
        Rule("advantages", ("token_level_rewards",), advantage),
        Rule("returns", ("advantages",), same_as_advantage),
    ),
    words=Words(
        zh="结果发给每个 token，离结尾越远越少",
        en="the outcome is paid to every token, the less the farther it is from the end",
        kid_zh="整条回答的分发给每个词，离结尾越远分得越少。",
        kid_en="Every word gets a part of the answer's score, the less the farther from the end.",
    ),
)
def fading_outcome(batch, settings: FadeSettings) -> Credit:
    mask = batch.mask  # [B, T]
    outcome = (batch["token_level_rewards"] * mask).sum(-1, keepdim=True)  # [B, 1]
    written = mask.long().cumsum(-1)  # [B, T]: 1 at the first token that the policy wrote
    to_the_end = written[:, -1:] - written  # [B, T]
    advantages = torch.where(mask, settings.fade**to_the_end * outcome, 0.0)
    return Credit(advantages, advantages)
