"""The column table: what each column of a batch means, and which token it belongs to.

A response of six tokens has seven states. States are fence posts, tokens are the gaps between them:

    state    s0     s1     s2     s3      s4     s5     s6 = end
             |  是  |  的  |  ，  |  等于 |  2   |  ！  |
    values  V0     V1     V2     V3      V4     V5      (V6 = 0, or a bootstrap if it was cut off)
    rewards   r0     r1     r2     r3      r4     r5

Prompts are left-padded to P tokens. Responses are right-padded to T, the longest of the batch.
Index i is the i-th response token, counted from 0. A valid token is one that the policy chose: its
`response_mask` is 1. Every float column of the response is exactly 0 where the mask is 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Anchor = Literal["sequence", "action", "state", "row"]
"""What a column's numbers belong to, and so its shape.

sequence: [B, P+T], or [B, P] for `prompts`; action, state: [B, T]; row: [B].
"""


@dataclass(frozen=True)
class Column:
    """One row of the table. Docs, ledger schema and explanations are made from these."""

    name: str
    anchor: Anchor
    dtype: Literal["int", "float", "bool"]
    maker: str
    """The call that makes it."""
    formula: str
    en: str
    """What it means, in English."""
    zh: str
    """What it means, in Chinese."""


GENERATE = "actor.generate_sequences(prompts)"
_VALUES = "critic.compute_values(batch)"
_REFERENCE = "reference.compute_log_prob(batch)"
_REWARD = "reward.compute_reward(batch)"
_CREDIT = "compute_advantages(batch)"
_UPDATE = "actor.update_actor(batch)"

# fmt: off
COLUMNS: Mapping[str, Column] = MappingProxyType({
    column.name: column
    for column in (
        Column("prompts", "sequence", "int", GENERATE, "",
               "prompt token ids, left-padded, [B, P]",
               "提示的 token id，左填充，[B, P]"),
        Column("input_ids", "sequence", "int", GENERATE, "",
               "prompt and response ids, [B, P+T]",
               "提示与回答的 token id，[B, P+T]"),
        Column("attention_mask", "sequence", "int", GENERATE, "",
               "1 = a token that exists",
               "1 = 真实存在的 token"),
        Column("position_ids", "sequence", "int", GENERATE, "",
               "position of each token in its own row",
               "每个 token 在本行中的位置"),
        Column("responses", "action", "int", GENERATE, "a_i",
               "token ids as sampled, never re-tokenised",
               "采样得到的 token id，从不重新分词"),
        Column("response_mask", "action", "int", GENERATE, "",
               "1 = a valid token: the policy chose it; 0 = padding, or a token that a tool wrote",
               "1 = 有效 token，由策略选出；0 = 填充，或工具写入的 token"),
        Column("sample", "row", "int", GENERATE, "",
               "which response of the step this is",
               "本步的第几个回答"),
        Column("policy_version", "row", "int", GENERATE, "",
               "training steps that had updated the policy before this response was sampled",
               "采样该回答之前，已更新过策略的训练步数"),
        Column("group", "row", "int", GENERATE, "",
               "which prompt it answers: all responses to one prompt share the number",
               "回答的是哪个提示：同一提示的回答共用一个编号"),
        Column("truncated", "row", "bool", GENERATE, "",
               "the response stopped at its limit of tokens or turns instead of EOS",
               "回答因长度或交互次数的上限而被截断，没有写出 EOS"),
        Column("rollout_log_probs", "action", "float", GENERATE, "log π(a_i|s_i)",
               "the sampler's own log-probability, at the sampling temperature",
               "采样器自己给出的对数概率（采样温度下）"),
        Column("old_log_probs", "action", "float", GENERATE, "log π_old(a_i|s_i)",
               "the training model's log-probability: after sampling, generate_sequences runs the "
               "actor's training forward (compute_log_prob) over the response. π_old is the policy "
               "just before this step's update; it wrote the response too, unless "
               "`rollout.one_step_off_policy`. With one epoch and one minibatch the update's own "
               "forward gives π_old, so `actor.old_log_probs = auto` skips this one, and the column "
               "holds the sampler's values; `actor.old_log_probs = sampler` always does so",
               "训练模型给出的对数概率：采样之后，generate_sequences 用 actor 的训练前向"
               "（compute_log_prob）再算一遍。π_old 是本步更新之前的策略；除非开启 "
               "`rollout.one_step_off_policy`，回答也是它写的。只有一轮、一个小批时，更新自己的前向"
               "就给出 π_old，`actor.old_log_probs = auto` 便省去这一遍，此列取采样器的值；"
               "`actor.old_log_probs = sampler` 总是如此"),
        Column("sum_pi_squared", "action", "float", GENERATE, "Σ_v π(v|s_i)²",
               "how concentrated π is; only for estimators that need it",
               "π 有多集中；只用于需要它的估计器"),
        Column("values", "state", "float", _VALUES, "V[i]",
               "expected reward-to-go BEFORE token i is chosen; it has not seen token i",
               "写 token i 之前对剩余奖励的预期；没有看到 token i"),
        Column("bootstrap", "row", "float", _VALUES, "V_end",
               "value of the state after the last token if the response was cut off, else 0",
               "回答被截断时最后状态的价值，否则为 0"),
        Column("ref_log_prob", "action", "float", _REFERENCE, "log π_ref(a_i|s_i)",
               "log-probability under the frozen reference",
               "冻结的参考模型给出的对数概率"),
        Column("token_level_scores", "action", "float", _REWARD, "score[i]",
               "task score (after shaping) of s_i → s_{i+1}; a score of the whole response is on "
               "the last valid token",
               "任务得分（整形之后），记在转移 s_i → s_{i+1} 上；整条回答的得分记在"
               "最后一个有效 token"),
        Column("greedy_score", "row", "float", _REWARD, "",
               "score of the greedy response to the same prompt; only for estimators with a "
               "greedy baseline",
               "同一提示的贪心回答的得分；只用于以贪心回答为基线的估计器"),
        Column("attention", "action", "float", _REWARD, "w[i]",
               "weight by which token i shares in the outcome; only for estimators that share "
               "it by attention",
               "token i 分得结果的权重；只用于按注意力分配结果的估计器"),
        Column("kl", "action", "float", _CREDIT, "kl[i]",
               "per-token KL estimate between π_old and π_ref; a single sample may be negative, its "
               "mean over the policy's own samples is ≥ 0",
               "π_old 与 π_ref 的逐 token KL 估计；单个样本可为负，对策略自己的采样取平均才 ≥ 0"),
        Column("reward_mean", "row", "float", _CREDIT, "μ_r",
               "mean of the rewards over all valid tokens of the batch, the same in every row; only "
               "with `credit.whiten_rewards`",
               "整批有效 token 上奖励的均值，每行相同；只在 `credit.whiten_rewards` 时有"),
        Column("reward_std", "row", "float", _CREDIT, "σ_r",
               "their standard deviation, by which `credit.whiten_rewards` divides",
               "相应的标准差，`credit.whiten_rewards` 除以它"),
        Column("token_level_rewards", "action", "float", _CREDIT, "r[i] = score[i] − β·kl[i]",
               "reward of token i",
               "token i 的奖励"),
        Column("deltas", "action", "float", _CREDIT, "δ[i] = r[i] + γ·V[i⁺] − V[i]",
               "one-step surprise (TD error); i⁺ = the next valid token",
               "一步的“意外”（TD 误差）；i⁺ 是下一个有效 token"),
        Column("advantages", "action", "float", _CREDIT,
               "by credit.estimator; default: A[i] = δ[i] + γλ·A[i⁺]",
               "raw advantage, before whitening",
               "未白化的优势"),
        Column("baselines", "state", "float", _CREDIT, "b[i]",
               "without a critic: what the outcome is compared with, A[i] = (outcome − "
               "b[i])/scale",
               "没有 critic 时：结果与之相比的基线，A[i] = (结果 − b[i])/scale"),
        Column("scale", "row", "float", _CREDIT, "",
               "what the difference is divided by: σ + 1e-6 of the group, or 1",
               "差值所除的数：本组的 σ + 1e-6，或 1"),
        Column("returns", "state", "float", _CREDIT, "by credit.estimator; default: R[i] = A[i] + V[i]",
               "the critic's target, if there is a critic; by default the λ-return, from the raw "
               "advantage",
               "critic 的目标（有 critic 时）；默认是 λ-return，用未白化的优势计算"),
        Column("whiten_mean", "row", "float", _CREDIT, "μ",
               "mean of A over all valid tokens of the batch, the same in every row; 0 "
               "without whitening",
               "整批有效 token 上 A 的均值，每行相同；不白化时为 0"),
        Column("whiten_std", "row", "float", _CREDIT, "σ = √(var + 1e-8)",
               "their standard deviation; var is the variance of A over these M tokens, with "
               "M − 1; 1 without whitening",
               "相应的标准差；var 是这 M 个 token 上 A 的方差（除以 M − 1）；不白化时为 1"),
        Column("whitened", "action", "float", _CREDIT, "Â[i] = (A[i] − μ)/σ",
               "the advantage the actor's loss uses; μ, σ over all valid tokens of the whole "
               "batch",
               "actor 损失所用的优势；μ、σ 取自整批有效 token"),
        Column("entropy", "state", "float", _UPDATE, "H[i] = −Σ_v π(v|s_i)·log π(v|s_i)",
               "how undecided the policy is before token i, in nats, at the first update that the "
               "response takes part in; only in the ledger, because it is the update's own forward "
               "that computes it",
               "写 token i 之前策略有多犹豫，单位 nat，取该回答参与的第一次更新；由更新自己的前向算出，"
               "所以只在账本里"),
        Column("top_entropy", "action", "bool", _UPDATE, "",
               "tokens of a minibatch with the largest entropy, the share `actor.top_entropy`; the "
               "others have no loss; exists during its update only",
               "小批中熵最大的 token，占比 `actor.top_entropy`；其余 token 没有损失；只在那次更新中存在"),
        Column("prompt_share", "row", "float", _UPDATE, "1/(prompts · tokens of its prompt)",
               "what a token of the row counts with `actor.aggregation = prompt-mean`; exists during "
               "its update only",
               "`actor.aggregation = prompt-mean` 时该行一个 token 的份额；只在那次更新中存在"),
        Column("selected", "action", "bool", _UPDATE, "",
               "tokens of a minibatch that the policy loss treats differently; exists during "
               "its update only",
               "小批中被策略损失特殊对待的 token；只在那次更新中存在"),
    )
})
# fmt: on


def column_table() -> str:
    """The contract as a Markdown table: docs/columns.md holds exactly this."""
    lines = [
        _table_row("column", "anchored to", "made by", "formula", "meaning", "含义"),
        _table_row(*["---"] * 6),
    ]
    for column in COLUMNS.values():
        name = f"`{column.name}`"
        maker = f"`{column.maker}`"
        formula = column.formula.replace("|", "\\|")
        lines.append(_table_row(name, column.anchor, maker, formula, column.en, column.zh))
    return "\n".join(lines)


def _table_row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"
