"""The Python files of an app, and their changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PASSED_OVER = {"__pycache__", "node_modules", "site-packages"}


class Sources:
    """The `*.py` files below some directories, as they were at the last look.

    Hidden folders, virtual environments, `site-packages`, `__pycache__` and `node_modules` are
    skipped.

    Args:
        directories: The directories.
        excludes: Patterns of more files and folders to skip, by `Path.match`: `gen` and `*_pb2.py`
            match at any depth.
    """

    def __init__(self, *directories: Path, excludes: Sequence[str] = ()) -> None:
        self._directories = directories
        self._excludes = excludes
        self._seen = dict(self._stamps())
        self._changed: set[str] = set()

    def changed(self) -> list[str]:
        """Look once; the files that have changed, been added or deleted, once they stand still.

        A file that changed since the last look may be half written: it is returned by the first
        look that finds all files unchanged since the look before.

        Returns:
            Paths relative to their directory, sorted; empty if nothing has changed.
        """
        now = dict(self._stamps())
        differing = {path for path, _ in now.items() ^ self._seen.items()}
        self._seen = now
        if differing:
            self._changed |= differing
            return []
        found, self._changed = sorted(self._changed), set()
        return found

    def _stamps(self) -> Iterator[tuple[str, tuple[int, int, int]]]:
        """Each file, and a stamp that changes when it is written or replaced."""
        for directory in self._directories:
            for path in self._files(directory):
                try:
                    stat = path.stat()
                except OSError:
                    # The file was deleted meanwhile, or is a broken link.
                    continue
                stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                yield str(path.relative_to(directory)), stamp

    def _files(self, directory: Path) -> Iterator[Path]:
        for folder, folders, files in os.walk(directory):
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [
                name
                for name in folders
                if name[0] != "." and name not in _PASSED_OVER and self._is_watched(folder, name)
            ]
            for name in files:
                if name.endswith(".py") and name[0] != "." and self._is_watched(folder, name):
                    yield Path(folder, name)

    def _is_watched(self, folder: str, name: str) -> bool:
        return not any(Path(folder, name).match(pattern) for pattern in self._excludes)
