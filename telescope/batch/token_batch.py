"""`TokenBatch`: rows of prompt and response, with the columns made so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from telescope.batch.checks import check_dtype, check_widths
from telescope.batch.columns import COLUMNS, Column
from telescope.batch.info import RowInfo, Scores
from telescope.errors import TelescopeError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_NO_SAMPLE = 1 << 40
"""Sample number of a blank row: past every limit, so the ledger never records it."""


class TokenBatch:
    """Rows of prompt and response with the columns made so far.

    A batch is immutable: each stage returns a new one with more columns.
    `info` has one record per row for what is not a tensor; it is empty in a batch without it.
    """

    info: tuple[RowInfo, ...]

    def __init__(self, columns: Mapping[str, Tensor], info: Sequence[RowInfo] = ()) -> None:
        if "response_mask" not in columns:
            raise TelescopeError(
                "a batch needs a `response_mask` [B, T]: 1 where the policy chose the token"
            )
        self._mask = columns["response_mask"].bool()
        self._columns = {name: self._checked(name, value) for name, value in columns.items()}
        check_widths(self._columns)
        self._host: dict[str, Any] = {}
        self.info = tuple(info)

    @classmethod
    def _trusted(
        cls,
        columns: dict[str, Tensor],
        info: Sequence[RowInfo],
        host: dict[str, Any],
    ) -> TokenBatch:
        """Makes a batch from columns that were checked before."""
        batch = cls.__new__(cls)
        batch._mask = columns["response_mask"].bool()
        batch._columns = columns
        batch._host = host
        batch.info = tuple(info)
        return batch

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._columns:
            maker = _column(name).maker
            raise TelescopeError(f"batch has no `{name}`: call {maker} first")
        return self._columns[name]

    def __contains__(self, name: object) -> bool:
        return name in self._columns

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return int(self._mask.shape[0])

    def __repr__(self) -> str:
        shapes = [f"{name} {list(value.shape)}" for name, value in self._columns.items()]
        return f"TokenBatch({', '.join(shapes)})"

    @property
    def mask(self) -> Tensor:
        """`response_mask` as bool [B, T]."""
        return self._mask

    @property
    def num_tokens(self) -> int:
        """Number of valid tokens over all rows."""
        return int(self._mask.sum())

    @property
    def scores(self) -> list[Scores]:
        """What the reward said about each row."""
        scores = [row.scores for row in self.info]
        found = [score for score in scores if score is not None]
        if len(found) < len(self):
            raise TelescopeError("batch has no scores: call reward.compute_reward(batch) first")
        return found

    def host(self, name: Literal["prompt", "response", "sample", "last"]) -> list[int]:
        """One Python int per row.

        prompt, response: its length without padding. sample: its number within the step. last: the
        place of its last valid token, −1 if it has none.
        """
        numbers: list[int] = self._on_host(name)
        return numbers

    def _on_host(self, name: str) -> Any:
        """Numbers that the host needs. They are copied from the device once per batch, together:
        a later copy would wait for whatever the device computes by then.
        """
        if name not in self._host:
            for key, numbers in self._copy_to_host().items():
                self._host.setdefault(key, numbers)  # a blank row has a sample number of its own
        return self._host[name]

    def _copy_to_host(self) -> dict[str, Any]:
        width = self["prompts"].shape[1]
        exists = self["attention_mask"].bool().cpu()
        prompts = exists[:, :width].sum(1).tolist()
        rows = zip(self["prompts"].tolist(), prompts, strict=True)
        rows_without_sample = list(range(len(self)))
        return {
            "prompt": prompts,
            "response": exists[:, width:].sum(1).tolist(),
            "sample": self["sample"].tolist() if "sample" in self else rows_without_sample,
            "last": _last_places(self._mask),
            "prompt_ids": [ids[width - length :] for ids, length in rows],
        }

    def row_lengths(self) -> list[int]:
        """Tokens of each whole row, prompt and response, without padding."""
        lengths = zip(self.host("prompt"), self.host("response"), strict=True)
        return [prompt + response for prompt, response in lengths]

    def prompt_ids(self) -> list[list[int]]:
        """The prompts' token ids without padding."""
        return [list(ids) for ids in self._on_host("prompt_ids")]

    def with_columns(self, **columns: Tensor) -> TokenBatch:
        """Returns a new batch with these columns added or replaced."""
        if "response_mask" in columns:
            raise TelescopeError(
                "the response_mask of a batch is fixed: "
                "make a new TokenBatch, whose columns are then checked against it"
            )
        checked = {name: self._checked(name, value) for name, value in columns.items()}
        host = {} if "attention_mask" in columns else self._host
        every = {**self._columns, **checked}
        check_widths(every)
        return TokenBatch._trusted(every, self.info, host)

    def with_info(self, **fields: Sequence[Any]) -> TokenBatch:
        """Returns a new batch with these fields of `RowInfo` set, one value per row."""
        rows = list(self.info) or [RowInfo()] * len(self)
        for name, values in fields.items():
            rows = [replace(row, **{name: value}) for row, value in zip(rows, values, strict=True)]
        return TokenBatch._trusted(self._columns, rows, self._host)

    def without_info(self) -> TokenBatch:
        """Returns a batch of the tensors alone."""
        return TokenBatch._trusted(self._columns, (), self._host)

    def to(self, device: torch.device) -> TokenBatch:
        """Returns the batch with its columns on `device`."""
        columns = {name: value.to(device) for name, value in self._columns.items()}
        return TokenBatch._trusted(columns, self.info, self._host)

    def rows(self, index: Tensor) -> TokenBatch:
        """Returns the rows at `index`, in that order, without padding that all of them share."""
        chosen: list[int] = index.tolist()
        index = index.to(self._mask.device, non_blocking=True)
        columns = {name: value[index] for name, value in self._columns.items()}
        info = [self.info[row] for row in chosen] if self.info else ()
        host: dict[str, Any] = {}
        if "attention_mask" in columns and chosen:
            longest = max(self.host("prompt")[row] for row in chosen)
            columns = _trim(columns, longest, max(self.host("response")[row] for row in chosen))
            host = {name: [own[row] for row in chosen] for name, own in self._host.items()}
        return TokenBatch._trusted(columns, info, host)

    def blank(self) -> TokenBatch:
        """Returns one row in which every token is masked.

        It costs a forward pass and adds nothing to a loss or a gradient. A rank without rows of
        its own computes it to join the collectives of the others.
        """
        row = self.rows(self["responses"].new_zeros(1))
        no_actions = row["response_mask"].new_zeros(row["response_mask"].shape)
        columns = {**row._columns, "response_mask": no_actions}
        host = {**row._host, "sample": [_NO_SAMPLE], "last": [-1]}
        return TokenBatch._trusted(columns, (), host)

    def only(self, tokens: Tensor) -> TokenBatch:
        """Returns the same rows with fewer actions: tokens off `tokens` [B, T] get mask 0."""
        mask = self._mask & tokens
        columns = dict(self._columns)
        for name, value in columns.items():
            if _is_masked(COLUMNS[name]) and value.is_floating_point():
                columns[name] = value.masked_fill(~mask, 0.0)
        columns["response_mask"] = mask.to(self["response_mask"].dtype)
        host = {name: values for name, values in self._host.items() if name != "last"}
        return TokenBatch._trusted(columns, self.info, host)

    def __getstate__(self) -> dict[str, Any]:
        columns = {name: value.cpu() for name, value in self._columns.items()}
        return {"columns": columns, "info": self.info, "host": self._host}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._columns = state["columns"]
        self._host = state["host"]
        self.info = state["info"]
        self._mask = self._columns["response_mask"].bool()

    def _checked(self, name: str, value: Tensor) -> Tensor:
        """Checks a column's shape and type, and sets its floats to 0 where the mask is 0."""
        column = _column(name)
        check_dtype(column, value)
        expected = self._expected_shape(column)
        if expected is not None and list(value.shape) != expected:
            raise TelescopeError(
                f"column `{name}` has shape {list(value.shape)}; "
                f"it is {column.anchor}-anchored, so this batch needs {expected}"
            )
        if column.dtype != "float" or not _is_masked(column):
            return value
        if name == "token_level_scores":
            _refuse_stray_scores(value, self._mask)
        return value.masked_fill(~self._mask, 0.0)

    def _expected_shape(self, column: Column) -> list[int] | None:
        """The shape a column must have; None where the batch does not fix it."""
        if _is_masked(column):
            return list(self._mask.shape)
        return [len(self)] if column.anchor == "row" else None


def _last_places(mask: Tensor) -> list[int]:
    """The last place of each row [B, T] where the mask is set; −1 if there is none."""
    numbered = mask.cumsum(1) * mask  # the k-th set place is k, the others are 0
    last = numbered.argmax(1) if mask.shape[1] else mask.sum(1)
    return last.masked_fill(~mask.any(1), -1).tolist()


def merge(parts: Sequence[TokenBatch], rows: Sequence[Sequence[int]]) -> TokenBatch:
    """Puts batches together: `rows[i]` are the rows of the result that `parts[i]` holds.

    The parts may be padded to different widths.
    """
    total = 1 + max(row for part in rows for row in part)
    prompt_width = max(part["prompts"].shape[1] for part in parts)
    response_width = max(part["responses"].shape[1] for part in parts)
    columns: dict[str, Tensor] = {}
    for name in parts[0]:
        anchor = COLUMNS[name].anchor
        merged = parts[0][name].new_zeros(_merged_shape(name, total, prompt_width, response_width))
        for part, where in zip(parts, rows, strict=True):
            value = part[name]
            if anchor == "row":
                merged[list(where)] = value
                continue
            # prompts are padded on the left, so their columns end at the same place
            start = prompt_width - part["prompts"].shape[1] if anchor == "sequence" else 0
            merged[list(where), start : start + value.shape[1]] = value
        columns[name] = merged
    return TokenBatch._trusted(columns, _merged_info(parts, rows, total), {})


def _merged_shape(name: str, total: int, prompt_width: int, response_width: int) -> list[int]:
    anchor = COLUMNS[name].anchor
    if anchor == "row":
        return [total]
    if name == "prompts":
        return [total, prompt_width]
    if anchor == "sequence":
        return [total, prompt_width + response_width]
    return [total, response_width]


def _merged_info(
    parts: Sequence[TokenBatch], rows: Sequence[Sequence[int]], total: int
) -> list[RowInfo]:
    if not parts[0].info:
        return []
    info = [RowInfo()] * total
    for part, where in zip(parts, rows, strict=True):
        for row, record in zip(where, part.info, strict=True):
            info[row] = record
    return info


def _column(name: str) -> Column:
    if name not in COLUMNS:
        raise TelescopeError(f"there is no column `{name}`; the columns are {', '.join(COLUMNS)}")
    return COLUMNS[name]


def _is_masked(column: Column) -> bool:
    """Whether the column has one number per response token."""
    return column.anchor in ("action", "state")


def _refuse_stray_scores(scores: Tensor, mask: Tensor) -> None:
    is_number = scores == scores  # NaN in padding is garbage, a number is a mistake
    stray = (scores != 0) & is_number & ~mask
    if bool(stray.any()):
        row, t = stray.nonzero()[0].tolist()
        raise TelescopeError(
            f"row {row}: a score of {float(scores[row, t]):g} on token {t}, "
            "which the policy did not write (mask 0); "
            "put it on a token with mask 1, e.g. the last one"
        )


def _trim(columns: dict[str, Tensor], prompt: int, response: int) -> dict[str, Tensor]:
    """Cuts off padding that all rows share: prompts on the left, responses on the right."""
    width = columns["attention_mask"].shape[1] - columns["responses"].shape[1]  # P
    trimmed = {}
    for name, value in columns.items():
        anchor = COLUMNS[name].anchor
        if name == "prompts":
            value = value[:, width - prompt :]
        elif anchor == "sequence":
            value = value[:, width - prompt : width + response]
        elif anchor != "row":
            value = value[:, :response]
        trimmed[name] = value
    return trimmed
