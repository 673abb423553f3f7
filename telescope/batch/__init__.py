"""The batch: the one contract every stage relies on.

- `columns`: the table of all columns: what each means, which token it belongs to, who makes it.
- `info`: what is known of each row beside its tensors: texts, scores, tool calls.
- `token_batch`: `TokenBatch` itself, which holds both.

Imports only `telescope.errors`. Reading the table needs no torch.
"""

from telescope.batch.columns import COLUMNS, Anchor, Column, column_table
from telescope.batch.info import Response, RowInfo, Scores, ShapedScore, ToolUse
from telescope.batch.token_batch import TokenBatch, merge

__all__ = [
    "COLUMNS",
    "Anchor",
    "Column",
    "Response",
    "RowInfo",
    "Scores",
    "ShapedScore",
    "TokenBatch",
    "ToolUse",
    "column_table",
    "merge",
]
