"""The batch, and the one contract everybody relies on: what each column means and which token it belongs to.

A response of six tokens has seven states. States are fence posts, tokens are the gaps between them:

    state    s0     s1     s2     s3      s4     s5     s6 = end
             |  是  |  的  |  ，  |  等于 |  2   |  ！  |
    values  V0     V1     V2     V3      V4     V5      (V6 = 0, or a bootstrap where the response was cut off)
    rewards   r0     r1     r2     r3      r4     r5

Prompts are left-padded to P tokens, responses right-padded to T, the longest of the batch. Index t is the t-th response
token. Every float column is exactly 0 off the mask, whatever was handed in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from telescope.errors import TelescopeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Anchor = Literal["sequence", "action", "state", "row"]


@dataclass(frozen=True)
class Column:
    """One row of the contract: docs, ledger schema and explanations are made from these."""

    name: str
    anchor: Anchor
    """sequence: [B, P+T] (or [B, P]); action, state: [B, T]; row: [B]."""
    dtype: Literal["int", "float", "bool"]
    maker: str
    """The call that makes it."""
    formula: str
    en: str
    zh: str


_GENERATE = "actor.generate_sequences(prompts)"
_CREDIT = "compute_advantages(batch)"

COLUMNS: Mapping[str, Column] = MappingProxyType(
    {
        c.name: c
        for c in (
            Column("prompts", "sequence", "int", _GENERATE, "", "prompt token ids, left-padded, [B, P]", "提示的 token id，左填充，[B, P]"),
            Column("input_ids", "sequence", "int", _GENERATE, "", "prompt and response ids, [B, P+T]", "提示与回答的 token id，[B, P+T]"),
            Column("attention_mask", "sequence", "int", _GENERATE, "", "1 = a token that exists", "1 = 真实存在的 token"),
            Column("position_ids", "sequence", "int", _GENERATE, "", "position of each token in its own row", "每个 token 在本行中的位置"),
            Column("responses", "action", "int", _GENERATE, "a_t", "token ids as sampled, never re-tokenised", "采样得到的 token id，从不重新分词"),
            Column("response_mask", "action", "int", _GENERATE, "", "1 = the policy chose this token; 0 = padding, or a token that a tool wrote", "1 = 由策略选出；0 = 填充，或工具写入的 token"),
            Column("sample", "row", "int", _GENERATE, "", "which response of the step this is", "本步的第几个回答"),
            Column("policy_version", "row", "int", _GENERATE, "", "updates that the weights which wrote the response had seen", "写出该回答的权重经历过的更新次数"),
            Column("group", "row", "int", _GENERATE, "", "which prompt it answers: responses of one prompt share the number", "回答的是哪个提示：同一提示的回答共用一个编号"),
            Column("truncated", "row", "bool", _GENERATE, "", "the response stopped at the limit of its length, or of its turns, instead of EOS", "回答因长度或轮数上限而被截断，没有写出 EOS"),
            Column("rollout_log_probs", "action", "float", _GENERATE, "log π(a_t|s_t)", "the sampler's own log-probability, at the sampling temperature", "采样器自己给出的对数概率（采样温度下）"),
            Column("old_log_probs", "action", "float", _GENERATE, "log π_old(a_t|s_t)", "the same from the training forward; π_old is the policy at rollout time. With one epoch and one minibatch the update's own forward is that one, and this is the sampler's", "训练前向算出的对数概率；π_old 是采样时的策略。只有一轮、一个小批时，更新自己的前向就是它，此列取采样器的值"),
            Column("sum_pi_squared", "action", "float", _GENERATE, "Σ_v π(v|s_t)²", "how peaked π is; only for the optimal token baseline", "π 有多集中；只用于最优 token 基线"),
            Column("values", "state", "float", "critic.compute_values(batch)", "V(s_t)", "expected reward-to-go BEFORE token t is chosen; it has not seen token t", "写 token t 之前对剩余奖励的预期；没有看到 token t"),
            Column("bootstrap", "row", "float", "critic.compute_values(batch)", "V(s_T)", "value of the state after the last token where the response was cut off, else 0", "回答被截断时最后状态的价值，否则为 0"),
            Column("ref_log_prob", "action", "float", "reference.compute_log_prob(batch)", "log π_ref(a_t|s_t)", "log-probability under the frozen reference", "冻结的参考模型给出的对数概率"),
            Column("token_level_scores", "action", "float", "reward.compute_reward(batch)", "score_t", "task score paid on s_t → s_{t+1}; sparse scores sit on the last mask-1 token", "任务得分，记在转移 s_t → s_{t+1} 上；稀疏得分记在最后一个有效 token"),
            Column("greedy_score", "row", "float", "reward.compute_reward(batch)", "", "score of the greedy response to the same prompt; only for remax", "同一提示的贪心回答的得分；只用于 remax"),
            Column("attention", "action", "float", "reward.compute_reward(batch)", "w_t", "weight by which token t shares in the outcome; only for the estimator attention", "token t 分得结果的权重；只用于 attention"),
            Column("kl", "action", "float", _CREDIT, "kl_t", "per-token KL estimate between π_old and π_ref; a single sample may be negative", "π_old 与 π_ref 的逐 token KL 估计；单个样本可为负"),
            Column("token_level_rewards", "action", "float", _CREDIT, "r_t = score_t − β·kl_t", "reward of token t", "token t 的奖励"),
            Column("deltas", "action", "float", _CREDIT, "δ_t = r_t + γ·V(s_n) − V(s_t)", "one-step surprise; n = the next mask-1 position", "一步的“意外”；n 是下一个有效位置"),
            Column("advantages", "action", "float", _CREDIT, "A_t = δ_t + γλ·A_n", "raw advantage, before whitening", "原始优势，白化之前"),
            Column("baselines", "state", "float", _CREDIT, "b_t", "without a critic: what the outcome is compared with, A_t = (outcome − b_t)/scale", "没有 critic 时：结果与之相比的基线，A_t = (结果 − b_t)/scale"),
            Column("scale", "row", "float", _CREDIT, "", "what the difference is divided by: σ + 1e-6 of the group, or 1", "差值所除的数：本组的 σ + 1e-6，或 1"),
            Column("returns", "state", "float", _CREDIT, "R_t = A_t + V(s_t)", "the λ-return: the critic's target, from the raw advantage", "λ-return，critic 的目标，用原始优势计算"),
            Column("whiten_mean", "row", "float", _CREDIT, "μ", "mean of A over all mask-1 tokens of the batch, the same in every row; 0 without whitening", "整批有效 token 上 A 的均值，每行相同；不白化时为 0"),
            Column("whiten_std", "row", "float", _CREDIT, "σ = √(σ² + 1e-8)", "their standard deviation (n − 1); 1 without whitening", "相应的标准差（n − 1）；不白化时为 1"),
            Column("whitened", "action", "float", _CREDIT, "Â_t = (A_t − μ)/σ", "the advantage the actor's loss uses; μ, σ over all mask-1 tokens of the whole batch", "actor 损失所用的优势；μ、σ 取自整批有效 token"),
            Column("selected", "action", "bool", "actor.update_actor(batch)", "", "tokens of a minibatch that clip_cov or kl_cov treats apart; lives as long as its update", "小批中被 clip_cov 或 kl_cov 特殊对待的 token；只在那次更新中存在"),
        )
    }
)  # fmt: skip


def column_table() -> str:
    """The contract as a Markdown table: docs/columns.md holds exactly this."""
    rows = [
        (f"`{c.name}`", c.anchor, f"`{c.maker}`", c.formula.replace("|", "\\|"), c.en, c.zh)
        for c in COLUMNS.values()
    ]
    header = ("column", "anchored to", "made by", "formula", "meaning", "含义")
    return "\n".join("| " + " | ".join(row) + " |" for row in (header, ("---",) * 6, *rows))


class TokenBatch:
    """Rows of prompt and response with the columns made so far. Immutable: each stage returns a new batch with more.

    `info` holds per-row Python values that are not tensors: prompt, response (text), response_ids, data (the row's own
    columns), score and its parts.
    """

    def __init__(
        self, columns: Mapping[str, Tensor], info: Mapping[str, Sequence[Any]] | None = None
    ) -> None:
        if "response_mask" not in columns:
            raise TelescopeError(
                "a batch needs a `response_mask` [B, T]: 1 where the policy chose the token"
            )
        self._mask = columns["response_mask"].bool()
        self._columns = {name: self._checked(name, value) for name, value in columns.items()}
        self.info: Mapping[str, Sequence[Any]] = MappingProxyType(dict(info or {}))
        self._host: dict[str, list[int]] = {}

    @classmethod
    def _trusted(
        cls,
        columns: dict[str, Tensor],
        info: Mapping[str, Sequence[Any]],
        host: dict[str, list[int]],
    ) -> TokenBatch:
        """A batch of columns that were checked before."""
        batch = cls.__new__(cls)
        batch._mask = columns["response_mask"].bool()
        batch._columns = columns
        batch._host = host
        batch.info = MappingProxyType(dict(info))
        return batch

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._columns:
            column = COLUMNS.get(name)
            if column is None:
                raise TelescopeError(
                    f"there is no column `{name}`; the columns are {', '.join(COLUMNS)}"
                )
            raise TelescopeError(f"batch has no `{name}`: call {column.maker} first")
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return int(self._mask.shape[0])

    def __repr__(self) -> str:
        return f"TokenBatch({', '.join(f'{k} {list(v.shape)}' for k, v in self._columns.items())})"

    @property
    def mask(self) -> Tensor:
        """`response_mask` as bool [B, T]."""
        return self._mask

    @property
    def num_tokens(self) -> int:
        """Tokens the policy chose, over all rows."""
        return int(self._mask.sum())

    def host(self, name: Literal["prompt", "response", "sample"]) -> list[int]:
        """Tokens of each row's prompt or response without padding, or its sample number. The device is asked once per batch."""
        if not self._host:
            width = self["prompts"].shape[1]
            exists = self["attention_mask"].bool().cpu()
            self._host.update(
                prompt=exists[:, :width].sum(1).tolist(), response=exists[:, width:].sum(1).tolist()
            )
            self._host["sample"] = (
                self["sample"].tolist() if "sample" in self else list(range(len(self)))
            )
        return self._host[name]

    def row_lengths(self) -> list[int]:
        """Tokens of each whole row, prompt and response, without padding."""
        return [p + r for p, r in zip(self.host("prompt"), self.host("response"), strict=True)]

    def blank(self) -> TokenBatch:
        """One row without a single action: it costs a forward pass and changes nothing."""
        row = self.rows(self["responses"].new_zeros(1))
        columns = {
            **row._columns,
            "response_mask": row["response_mask"].new_zeros(row["response_mask"].shape),
        }
        return TokenBatch._trusted(columns, {}, {**row._host, "sample": [1 << 40]})

    def __getstate__(self) -> dict[str, Any]:
        return {
            "columns": {name: value.cpu() for name, value in self._columns.items()},
            "info": dict(self.info),
            "host": self._host,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._columns, self._host, self.info = (
            state["columns"],
            state["host"],
            MappingProxyType(state["info"]),
        )
        self._mask = self._columns["response_mask"].bool()

    def to(self, device: torch.device) -> TokenBatch:
        return TokenBatch._trusted(
            {name: value.to(device) for name, value in self._columns.items()}, self.info, self._host
        )

    def prompt_ids(self) -> list[list[int]]:
        """The prompts' tokens without their padding."""
        width = self["prompts"].shape[1]
        return [
            row[width - n :]
            for row, n in zip(self["prompts"].tolist(), self.host("prompt"), strict=True)
        ]

    def with_columns(self, **columns: Tensor) -> TokenBatch:
        """A new batch with these columns added; the old one stays as it is."""
        if "response_mask" in columns:
            raise TelescopeError(
                "the response_mask of a batch is fixed: make a new TokenBatch, whose columns are then checked against it"
            )
        checked = {name: self._checked(name, value) for name, value in columns.items()}
        return TokenBatch._trusted(
            {**self._columns, **checked},
            self.info,
            {} if "attention_mask" in columns else self._host,
        )

    def with_info(self, **info: Sequence[Any]) -> TokenBatch:
        return TokenBatch._trusted(self._columns, {**self.info, **info}, self._host)

    def without_info(self) -> TokenBatch:
        return TokenBatch._trusted(self._columns, {}, self._host)

    def only(self, tokens: Tensor) -> TokenBatch:
        """The same rows with fewer actions: what is off `tokens` [B, T] counts as not written by the policy."""
        mask = self._mask & tokens
        columns = {
            name: value.masked_fill(~mask, 0.0)
            if value.is_floating_point() and COLUMNS[name].anchor in ("action", "state")
            else value
            for name, value in self._columns.items()
        }
        columns["response_mask"] = mask.to(self["response_mask"].dtype)
        return TokenBatch._trusted(columns, self.info, self._host)

    def rows(self, index: Tensor) -> TokenBatch:
        """The rows at `index`, in that order, trimmed to their own longest prompt and response."""
        where = index.tolist()
        index = index.to(self._mask.device, non_blocking=True)
        picked = {name: value[index] for name, value in self._columns.items()}
        info = {name: [values[i] for i in where] for name, values in self.info.items()}
        host: dict[str, list[int]] = {}
        if "attention_mask" in picked and where:
            host = {"sample": [self.host("sample")[i] for i in where]}
            host |= {name: [self.host(name)[i] for i in where] for name in ("prompt", "response")}
            picked = _trim(picked, max(host["prompt"]), max(host["response"]))
        return TokenBatch._trusted(picked, info, host)

    def _checked(self, name: str, value: Tensor) -> Tensor:
        column = COLUMNS.get(name)
        if column is None:
            raise TelescopeError(
                f"there is no column `{name}`; the columns are {', '.join(COLUMNS)}"
            )
        expected: tuple[int, ...] | None = None
        if column.anchor in ("action", "state"):
            expected = tuple(self._mask.shape)
        elif column.anchor == "row":
            expected = (len(self),)
        if expected is not None and tuple(value.shape) != expected:
            raise TelescopeError(
                f"column `{name}` has shape {list(value.shape)}; it is {column.anchor}-anchored, so this batch needs {list(expected)}"
            )
        if column.dtype != "float" or column.anchor == "row":
            return value
        if name == "token_level_scores":
            _refuse_stray_scores(value, self._mask)
        return value.masked_fill(~self._mask, 0.0)


def _refuse_stray_scores(scores: Tensor, mask: Tensor) -> None:
    stray = (
        (scores != 0) & (scores == scores) & ~mask
    )  # NaN in padding is garbage, a number is a mistake
    if bool(stray.any()):
        row, t = (int(i) for i in stray.nonzero()[0])
        raise TelescopeError(
            f"row {row}: a score of {float(scores[row, t]):g} on token {t}, which the policy did not write (mask 0); "
            "put it on a token with mask 1, e.g. the last one"
        )


def merge(parts: Sequence[TokenBatch], rows: Sequence[Sequence[int]]) -> TokenBatch:
    """The batch of which the parts hold the given rows, each padded to widths of its own."""
    total = 1 + max(row for part in rows for row in part)
    prompt, response = (
        max(part[name].shape[1] for part in parts) for name in ("prompts", "responses")
    )
    columns: dict[str, Tensor] = {}
    for name in parts[0]:
        anchor = COLUMNS[name].anchor
        width = (
            prompt if name == "prompts" else prompt + response if anchor == "sequence" else response
        )
        first = parts[0][name]
        out = first.new_zeros(total) if anchor == "row" else first.new_zeros(total, width)
        for part, where in zip(parts, rows, strict=True):
            value = part[name]
            if anchor == "row":
                out[list(where)] = value
            else:
                start = prompt - part["prompts"].shape[1] if anchor == "sequence" else 0
                out[list(where), start : start + value.shape[1]] = value
        columns[name] = out
    info: dict[str, list[Any]] = {name: [None] * total for name in parts[0].info}
    for part, where in zip(parts, rows, strict=True):
        for name, values in part.info.items():
            for row, value in zip(where, values, strict=True):
                info[name][row] = value
    return TokenBatch._trusted(columns, info, {})


def _trim(columns: dict[str, torch.Tensor], prompt: int, response: int) -> dict[str, torch.Tensor]:
    """Cuts prompt columns that are padding in every row off the left, response columns off the right."""
    width = columns["attention_mask"].shape[1] - columns["responses"].shape[1]  # P
    out = {}
    for name, value in columns.items():
        anchor = COLUMNS[name].anchor
        if name == "prompts":
            value = value[:, width - prompt :]
        elif anchor == "sequence":
            value = value[:, width - prompt : width + response]
        elif anchor != "row":
            value = value[:, :response]
        out[name] = value
    return out
