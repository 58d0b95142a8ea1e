"""The beat of a process: each second it touches a file and reports to systemd that it is live."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from shardq.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardq.health.vitals import Vitals

_BEAT_S = 1.0


def systemd() -> Callable[[str], None] | None:
    """A function that sends a line to systemd; None if systemd has not asked for any.

    `NOTIFY_SOCKET` is removed from the environment, so that no child of this process sends lines.

    Source:
        sd_notify(3).
    """
    path = os.environ.pop("NOTIFY_SOCKET", "")
    if not path:
        return None
    address = f"\0{path[1:]}" if path.startswith("@") else path

    def tell(line: str) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one, suppress(OSError):
            # A systemd that is restarted takes nothing for a moment.
            one.sendto(line.encode(), address)

    return tell


class Beat:
    """Reports the vital signs once a second.

    Args:
        vitals: The vital signs of this process.
        file: A file that is touched while the process is live; None: no file.
        tell: Sends a line to systemd: `READY=1` once the process is ready, `WATCHDOG=1` while it is
            live, `STOPPING=1` at the end. None: there is no systemd.

    Raises:
        UsageError: If the file cannot be written.
    """

    def __init__(
        self, vitals: Vitals, *, file: Path | None, tell: Callable[[str], None] | None
    ) -> None:
        self._vitals = vitals
        self._file = file
        self._tell = tell or (lambda _line: None)
        self._is_told_ready = self._is_told_end = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shardq-beat", daemon=True)
        try:
            self._touch()
        except OSError as error:
            raise UsageError(f"--health {file} cannot be written: {error.strerror}.") from error

    def start(self) -> None:
        """Begin to beat, in a thread."""
        self._thread.start()

    def turn(self) -> None:
        """Beat once."""
        if self._vitals.is_leaving():
            self._leave()
        if not self._vitals.live().is_well:
            return
        with suppress(OSError):
            self._touch()
        self._tell("WATCHDOG=1")
        if not self._is_told_ready and self._vitals.ready().is_well:
            self._is_told_ready = True
            self._tell("READY=1")

    def close(self) -> None:
        """End the beat, and remove the file. Idempotent."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._leave()
        if self._file is not None:
            with suppress(OSError):
                self._file.unlink()

    def _leave(self) -> None:
        if not self._is_told_end:
            self._is_told_end = True
            self._tell("STOPPING=1")

    def _touch(self) -> None:
        if self._file is not None:
            self._file.touch()

    def _run(self) -> None:
        while not self._over.wait(_BEAT_S):
            self.turn()
