"""The Python files of an app, and whether one of them has changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_PASSED_OVER = {"__pycache__", "node_modules", "site-packages"}


class Sources:
    """What `*.py` files are below a directory, as they were when it was last looked at.

    Hidden folders, virtual environments, `site-packages`, `__pycache__` and `node_modules` are
    passed over.

    Args:
        directory: It.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._seen = dict(self._stamps())
        self._changed: set[str] = set()

    def changed(self) -> list[str]:
        """Look once; which files have changed, been added or deleted, once they stand still.

        A file that was changed since the last look may be half written: it is returned by the next
        look that finds all as the one before it did.

        Returns:
            Paths from the directory on, sorted; empty where there is nothing to tell.
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
        """Each file, and what differs once it was written, or another took its name."""
        for folder, folders, files in os.walk(self._directory):
            if "pyvenv.cfg" in files:
                folders.clear()
                continue
            folders[:] = [name for name in folders if name[0] != "." and name not in _PASSED_OVER]
            for name in files:
                if not name.endswith(".py") or name[0] == ".":
                    continue
                path = Path(folder, name)
                try:
                    stat = path.stat()
                except OSError:
                    # Deleted since, or a link to nowhere.
                    continue
                stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
                yield str(path.relative_to(self._directory)), stamp
