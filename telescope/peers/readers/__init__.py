"""Files of other trainers, by kind. A reader never executes what it reads.

A new kind is one module with `KIND`, and one line here.
"""

from __future__ import annotations

from pathlib import Path

from telescope.errors import TelescopeError
from telescope.peers.readers import nemo_rl, prime_rl, slime, trl, verl
from telescope.peers.readers.base import Kind

KINDS: dict[str, Kind] = {
    kind.name: kind for kind in (prime_rl.KIND, slime.KIND, nemo_rl.KIND, trl.KIND, verl.KIND)
}


def kind_of(path: Path, name: str | None = None) -> Kind:
    """The kind that `name` says, or the one whose files are there."""
    if name is not None:
        if name not in KINDS:
            raise TelescopeError(f"no kind {name!r}; kinds are {', '.join(KINDS)}")
        return KINDS[name]
    found = [kind for kind in KINDS.values() if kind.files(path)]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(kind.name for kind in found)
        raise TelescopeError(f"{path} has files of {names}: say which with --as")
    wanted = "; ".join(f"{kind.name}: {kind.pattern}" for kind in KINDS.values())
    raise TelescopeError(f"{path} has no files that can be opened. Looked for {wanted}")
