"""PPO written by hand, recorded by Telescope: what to add to any training loop.

    python examples/record_your_own_loop.py
    telescope explain runs/hand-written --step 60

A tiny policy learns to repeat a digit four times. Everything but `telescope.record` is plain torch.
"""

import torch
from torch import nn
from torch.nn.functional import one_hot

import telescope

DIGITS, LENGTH, ROWS, STEPS = 10, 4, 64, 60
GAMMA, LAM, CLIP = 1.0, 0.95, 0.2


class Net(nn.Module):
    """A policy head and a value head over (digit to repeat, position, last token)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * DIGITS + LENGTH, 64), nn.Tanh())
        self.policy = nn.Linear(64, DIGITS)
        self.value = nn.Linear(64, 1)

    def forward(self, prompt, position, last):
        given = (one_hot(prompt, DIGITS), one_hot(position, LENGTH), one_hot(last, DIGITS))
        x = self.body(torch.cat(given, -1).float())
        return self.policy(x).log_softmax(-1), self.value(x).squeeze(-1)


def states(prompt, responses):
    """What the net sees before each token: [B, T] each."""
    last = torch.cat([prompt[:, None], responses[:, :-1]], 1)
    position = torch.arange(LENGTH).expand_as(responses)
    return prompt[:, None].expand_as(responses), position, last


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(1, STEPS + 1):
    prompt = torch.randint(DIGITS, (ROWS,))
    responses = torch.zeros(ROWS, LENGTH, dtype=torch.long)
    with torch.no_grad():
        for i in range(LENGTH):  # one token after the other
            log_p, _ = net(*states(prompt, responses))
            responses[:, i] = torch.multinomial(log_p[:, i].exp(), 1).squeeze(1)
        log_p, values = net(*states(prompt, responses))
        old = log_p.gather(-1, responses[..., None]).squeeze(-1)  # [B, T]
        scores = (responses == prompt[:, None]).float().mean(1)
        rewards = torch.zeros(ROWS, LENGTH)
        rewards[:, -1] = scores
        advantages = torch.zeros_like(values)
        following = torch.zeros(ROWS)
        for i in reversed(range(LENGTH)):  # GAE
            after = values[:, i + 1] if i + 1 < LENGTH else 0.0
            following = rewards[:, i] + GAMMA * after - values[:, i] + GAMMA * LAM * following
            advantages[:, i] = following
        returns = advantages + values
        whitened = (advantages - advantages.mean()) / (advantages.var() + 1e-8).sqrt()
    for _ in range(4):
        log_p, predicted = net(*states(prompt, responses))
        new = log_p.gather(-1, responses[..., None]).squeeze(-1)
        ratio = (new - old).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        loss = -torch.min(ratio * whitened, clipped * whitened).mean()
        loss = loss + 0.5 * (predicted - returns).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    telescope.record(
        step, folder="runs/hand-written", responses=responses, prompts=[str(d.item()) for d in prompt],
        values=values, token_level_rewards=rewards, old_log_probs=old, log_probs=new.detach(),
        advantages=advantages, returns=returns, whitened=whitened, scores=scores,
        settings={"gamma": GAMMA, "lam": LAM, "clip_low": CLIP, "clip_high": CLIP, "kl_coef": 0.0},
        metrics={"reward/score_mean": scores.mean().item()},
    )  # fmt: skip
print(f"mean score {scores.mean():.2f}; now: telescope explain runs/hand-written --step {STEPS}")
