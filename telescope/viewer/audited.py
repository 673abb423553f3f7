"""What `telescope audit` found, as the fence of a sample shows it."""

from __future__ import annotations

from typing import Any

from telescope.audit.findings import Audit
from telescope.viewer.payload import number_of


def page_audit(audit: Audit | None, position: int) -> dict[str, Any] | None:
    """The audited states of one sample: [token, mean outcome, ends of its interval] each."""
    if audit is None:
        return None
    posts = [
        [post.token, number_of(post.mean), number_of(post.low), number_of(post.high)]
        for post in audit.posts
        if post.sample == position
    ]
    if not posts:
        return None
    return {
        "continuations": audit.continuations,
        "own_policy": audit.checkpoint == audit.needed,
        "posts": posts,
    }
