"""A disk that loses power: what a file system promises to keep, and nothing more.

Kept for certain: the content of a file at its last fsync, and the entries of a folder at its last
fsync. Later changes of a folder survive in order but end anywhere. A file that was written after
its last fsync survives as it was then, as it is now, cut off, or with zeros at its end.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from pathlib import Path
from random import Random
from typing import Any

Listing = dict[str, int]
"""Name -> inode."""
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree", "os.link"}


class Disk:
    """Watches one folder in this process, and cuts the power at event number `cut_at`.

    An event is an fsync, or a change of a folder that is about to happen.
    """

    def __init__(self, root: Path, side: Path, cut_at: int, chance: Random) -> None:
        self.root = root
        self.after = side / "after"
        """The folder as it is found when the power is back."""
        self.pins = side / "pins"
        self.pins.mkdir(parents=True)
        self.cut_at = cut_at
        self.chance = chance
        self.events = 0
        self.listings: dict[int, list[Listing]] = {}
        """Folder's inode -> its entries at the last fsync, and after each change since."""
        self.synced: dict[int, bytes] = {}
        """File's inode -> its content at the last fsync."""
        self._held: dict[int, int] = {}
        self._lock = threading.RLock()
        self._own = threading.local()

    def watch(self) -> None:
        """What is there now is on disk. From here on everything is watched."""
        self._scan()
        for inode in list(self.listings):
            self.listings[inode] = self.listings[inode][-1:]
        for pin in self.pins.iterdir():
            self.synced[int(pin.name)] = pin.read_bytes()
        os.fsync = self._fsync
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES and not getattr(self._own, "busy", False):
            self._event()

    def _fsync(self, descriptor: int) -> None:
        """Takes the place of os.fsync. The real one would only cost time."""
        self._event()
        status = os.fstat(descriptor)
        with self._lock:
            if stat.S_ISDIR(status.st_mode):
                if status.st_ino in self.listings:
                    self.listings[status.st_ino] = self.listings[status.st_ino][-1:]
            else:
                pin = self.pins / str(status.st_ino)
                if pin.exists():
                    self.synced[status.st_ino] = pin.read_bytes()

    def _event(self) -> None:
        with self._lock:
            self._own.busy = True
            self._scan()
            self.events += 1
            if self.events == self.cut_at:
                self.cut()
            self._own.busy = False

    def _scan(self) -> None:
        """Notes the entries of every folder, and holds on to every file, also when it is removed."""
        for folder, _, _ in os.walk(self.root):
            entries: Listing = {}
            try:
                place = os.stat(folder).st_ino
                if place not in self._held:  # as long as it is open, no other gets its number
                    self._held[place] = os.open(folder, os.O_RDONLY)
                with os.scandir(folder) as found:
                    for entry in found:
                        entries[entry.name] = entry.inode()
                        if not entry.is_dir(follow_symlinks=False):
                            self._pin(entry)
            except FileNotFoundError:
                continue
            known = self.listings.setdefault(place, [{}])
            if known[-1] != entries:
                known.append(entries)

    def _pin(self, entry: os.DirEntry[str]) -> None:
        pin = self.pins / str(entry.inode())
        if not pin.exists():
            try:
                os.link(entry.path, pin, follow_symlinks=False)
            except (FileNotFoundError, FileExistsError):
                return

    def cut(self) -> None:
        """Builds what is left, and ends this process."""
        self._own.busy = True  # what it changes from here on is no event
        self._build(os.stat(self.root).st_ino, self.after)
        os.kill(os.getpid(), signal.SIGKILL)

    def _build(self, folder: int, path: Path) -> None:
        path.mkdir()
        entries = self.chance.choice(self.listings.get(folder, [{}]))
        for name, inode in entries.items():
            if inode in self.listings:
                self._build(inode, path / name)
            elif (self.pins / str(inode)).exists():
                (path / name).write_bytes(self._content(inode))

    def _content(self, inode: int) -> bytes:
        now = (self.pins / str(inode)).read_bytes()
        kept = self.synced.get(inode, b"")
        if kept and not now.startswith(kept):
            return self.chance.choice([kept, now])
        rest = now[len(kept) :]
        part = rest[: self.chance.randint(0, len(rest))]
        return kept + self.chance.choice([b"", rest, part, part + bytes(len(rest) - len(part))])
