"""Responses made by hand, and responses that went through the trainer's own functions."""

from dataclasses import replace

import torch

from telescope.algorithms import (
    clipped_policy_loss,
    clipped_value_loss,
    masked_mean,
    masked_var,
    surrogate_loss,
)
from telescope.batch import TokenBatch
from telescope.config import CreditConfig
from telescope.credit import compute_advantages
from telescope.explain.arithmetic import fill
from telescope.explain.sample import SAMPLE_COLUMNS, ActorUpdate, CriticUpdate, Sample
from telescope.explain.settings import Settings

OLD = [-0.36, -0.20, -0.10, -0.51, -0.20, -0.10, -0.02]


def demo() -> Sample:
    """The screen of EXPLAIN.md: token 3 is clipped, whitening flips the last three signs."""
    texts = ["是", "的", "，", "等于", "2", "！", "<eos>"]
    columns = {
        "old_log_probs": OLD,
        "ref_log_prob": [-0.51, -0.20, -0.09, -0.69, -0.19, -0.10, -0.02],
        "token_level_scores": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0],
        "values": [0.40, 0.55, 0.56, 0.60, 0.72, 0.88, 0.93],
    }
    given = Sample(
        token_ids=[11, 12, 13, 14, 15, 16, 2],
        token_bytes=[text.encode() for text in texts],
        mask=[1] * 7,
        columns=columns,
        settings=Settings.of(kl_coef=0.1),
        prompt="请问1+1=2？",
        response="是的，等于2！",
        score=1.0,
        actor_updates=[
            ActorUpdate(0, 0, OLD, OLD, [], [], [], []),
            ActorUpdate(
                0, 1, OLD, [-0.20, -0.20, -0.10, -0.30, -0.20, -0.10, -0.15], [], [], [], []
            ),
        ],
        critic_updates=[CriticUpdate(0, 0, [0.40, 0.55, 0.56, 0.90, 0.72, 0.88, 0.93], [], [])],
    )
    return replace(fill(given), run="demo", step=40, index=3, count=8)


def with_tool() -> Sample:
    """A search in the middle (tokens 1 and 2 are the tool's), one character split over three tokens, cut off at the limit."""
    columns = {
        "token_level_rewards": [0.1, 0.0, 0.0, -0.2, 0.0, 0.3],
        "values": [0.5, 0.0, 0.0, 0.4, 0.6, 0.7],
    }
    return Sample(
        token_ids=list(range(6)),
        token_bytes=[b"find", b"\n<hit>", b" 42", b"\xe4", b"\xb8", b"\xad"],
        mask=[1, 0, 0, 1, 1, 1],
        columns=columns,
        settings=Settings.of(gamma=0.5, lam=0.5, whiten=False),
        truncated=True,
        bootstrap=0.8,
    )


def nearly_equal(length: int = 3, **settings: object) -> Sample:
    """Numbers that cancel: an outcome 1.257e−07 below its group's mean over a σ of 1e−06, V that hardly moves, π that is π_ref."""
    values = [0.1 + 0.98765432 + 3e-8 * t for t in range(length)]
    old = [-0.51082562 - 0.01 * t for t in range(length)]
    columns = {
        "old_log_probs": old,
        "ref_log_prob": [x - 2.4e-7 for x in old],
        "values": values,
        "token_level_rewards": [*[0.0] * (length - 1), 1 - 1.257e-7],
    }
    if settings.get("estimator") in ("grpo", "remax"):
        columns["baselines"] = [1.0] * length
    made = Sample(
        token_ids=list(range(length)),
        token_bytes=[f"t{t}".encode() for t in range(length)],
        mask=[1] * length,
        columns=columns,
        settings=Settings.of(**settings),
        scale=1e-6 if settings.get("estimator") == "grpo" else None,
        critic_updates=[CriticUpdate(0, 0, [v + 1.2345e-6 for v in values], [], [])],
    )
    return fill(made)


def trained(
    seed: int = 0,
    *,
    estimator: str = "gae",
    loss: str = "clip",
    kl_kind: str = "k1",
    whiten: bool = True,
) -> list[Sample]:
    """Four responses of random numbers, with holes and cut-off ends, through the credit stage and the losses in float32."""
    make = torch.Generator().manual_seed(seed)
    rows, width = 4, 12
    mask = (torch.rand(rows, width, generator=make) > 0.25).long()
    mask[:, 0] = 1

    def normal(scale: float) -> torch.Tensor:
        return torch.randn(rows, width, generator=make) * scale

    old = -normal(1.0).abs()
    truncated = torch.tensor([True, False, True, False])
    columns = {
        "response_mask": mask,
        "truncated": truncated,
        "old_log_probs": old,
        "ref_log_prob": old + normal(0.3),
        "values": normal(1.0),
        "bootstrap": torch.where(truncated, torch.tensor(0.7), torch.tensor(0.0)),
        "token_level_scores": normal(1.0) * mask,
    }
    names = {"estimator": estimator, "gamma": 0.98, "kl_kind": kl_kind, "whiten": whiten}
    lam = {"lam": 0.9} if estimator == "gae" else {}
    credit = CreditConfig.of(**names, **lam)
    batch = compute_advantages(TokenBatch(columns), credit, kl_coef=0.1)
    clip = {"loss": loss, "clip_low": 0.2, "clip_high": 0.3, "dual_clip": 1.5, "clip_value": 0.2}
    settings = Settings.of(**names, **lam, **clip, kl_coef=0.1)
    new, values = batch["old_log_probs"] + normal(0.8), batch["values"] + normal(0.5)
    terms = surrogate_loss(new, batch["old_log_probs"], batch["whitened"], batch.mask)
    if loss == "clip":
        clips = {"clip_low": 0.2, "clip_high": 0.3, "dual_clip": 1.5}
        terms = clipped_policy_loss(
            new, batch["old_log_probs"], batch["whitened"], batch.mask, **clips
        )
    critic = clipped_value_loss(
        values, batch["values"], batch["returns"], batch.mask, clip_value=0.2
    )
    out = []
    for b in range(rows):

        def pick(x: torch.Tensor, b: int = b) -> list:
            return x[b].tolist()

        actor = ActorUpdate(
            0,
            1,
            pick(batch["old_log_probs"]),
            pick(new * batch.mask),
            pick(terms.ratio),
            pick(terms.clipped),
            [],
            [],
        )
        actor = replace(actor, dual_clipped=pick(terms.dual_clipped), loss=pick(terms.loss))
        out.append(
            Sample(
                token_ids=list(range(width)),
                token_bytes=[f"t{t}".encode() for t in range(width)],
                mask=pick(mask),
                columns={name: pick(batch[name]) for name in SAMPLE_COLUMNS if name in batch},
                settings=settings,
                truncated=bool(truncated[b]),
                bootstrap=float(batch["bootstrap"][b]),
                whiten_mean=float(masked_mean(batch["advantages"].double(), batch.mask))
                if whiten
                else None,
                whiten_std=float(
                    (masked_var(batch["advantages"].double(), batch.mask) + 1e-8).sqrt()
                )
                if whiten
                else None,
                actor_updates=[actor],
                critic_updates=[
                    CriticUpdate(
                        0, 1, pick(values * batch.mask), pick(critic.clipped), pick(critic.loss)
                    )
                ],
            )
        )
    return out


def row(numbers: list) -> torch.Tensor:
    """One row [1, T] in float64."""
    return torch.tensor([numbers], dtype=torch.float64)
