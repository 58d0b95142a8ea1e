"""Python processes that are forked from one that has imported all: a tenth of the work of a start.

```
 pytest ──► server ──► keeper ──► process
            imports    tells its  has the streams, the directory and the environment that it is
            once       end        given, signals of its own, and the end of any Python process
```

Scripts and `python -m pytest` import shardq anew, so that they find what they import themselves,
and nothing else. What only a start has, `PYTHONHASHSEED` say, needs a real one.
"""

from __future__ import annotations

import array
import atexit
import functools
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
CLOSED = -9
"""In the place of a stream: the process has none."""
_PLACES = ("stdin", "stdout", "stderr")
_IMPORTED = ("shardq.cli", "shardq.stores.sqlite", "shardq.tasks", "shardq.schedules")
"""These packages, and all that is in them."""
_PYTEST = "pytest"
"""Imported once it is asked for."""
_NUMBER_BYTES = 8
_PART_BYTES = 1 << 16
_DESCRIPTORS_MAX = 1 << 12


# The tests' side ----------------------------------------------------------------------------------


class Process:
    """A process that runs, to be used as a `subprocess.Popen`.

    Args:
        words: What follows `python`: `-m` and a module, `-c` and code, or a file; and arguments.
        cwd: Where it runs.
        env: Its environment.
        stdin: A descriptor, a file, or one of `PIPE`, `DEVNULL`, `CLOSED`; so are the next two.
        stdout: See there.
        stderr: See there; it may be `STDOUT`.
        own_group: True if it leads a process group of its own.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdin: int | IO[Any] = DEVNULL,
        stdout: int | IO[Any] = PIPE,
        stderr: int | IO[Any] = PIPE,
        own_group: bool = False,
    ) -> None:
        self.returncode: int | None = None
        ours: list[IO[bytes] | None] = [None] * 3
        theirs: list[int] = []
        opened: list[int] = []
        for place, given in enumerate((stdin, stdout, stderr)):
            if given == PIPE:
                reader, writer = os.pipe()
                mine, its = (writer, reader) if place == 0 else (reader, writer)
                ours[place] = os.fdopen(mine, "wb" if place == 0 else "rb")
                opened.append(its)
            elif given == DEVNULL:
                its = os.open(os.devnull, os.O_RDWR)
                opened.append(its)
            elif given == STDOUT:
                its = theirs[1]
            else:
                its = given if isinstance(given, int) else given.fileno()
            theirs.append(its)
        self.stdin, self.stdout, self.stderr = ours
        self._result, result = socket.socketpair()
        with result:
            start(words, str(cwd), env, theirs, result, own_group=own_group)
        for its in opened:
            os.close(its)
        self.pid = self._number()

    def _number(self) -> int:
        told = self._result.recv(_NUMBER_BYTES, socket.MSG_WAITALL)
        assert len(told) == _NUMBER_BYTES, "the server of forked processes has died"
        return int.from_bytes(told, "big", signed=True)

    def poll(self) -> int | None:
        """The exit code, negative where a signal has ended it; None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end, up to `timeout` seconds; returns its exit code."""
        if self.returncode is None:
            self._result.settimeout(timeout)
            try:
                self.returncode = self._number()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0) from None
            self._result.close()
        return self.returncode

    def communicate(
        self, given: bytes | None = None, timeout: float | None = None
    ) -> tuple[bytes, bytes]:
        """Give it its stdin, and wait for its end; returns what was not read of its output yet."""
        read: dict[IO[bytes], bytes] = {}
        threads = [
            threading.Thread(target=lambda one=one: read.update({one: one.read()}), daemon=True)
            for one in (self.stdout, self.stderr)
            if one is not None and not one.closed
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                self.stdin.write(given or b"")
                self.stdin.close()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        self.wait(timeout)
        out, err = (read.get(one, b"") if one else b"" for one in (self.stdout, self.stderr))
        return out, err

    def send_signal(self, number: int) -> None:
        """Send it a signal, where it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it by SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self.stdout, self.stderr, self.stdin):
            if one is not None:
                with suppress(BrokenPipeError):
                    one.close()
        self.wait()


def start(
    words: Sequence[str],
    cwd: str,
    env: Mapping[str, str],
    streams: Sequence[int],
    result: socket.socket,
    *,
    own_group: bool = False,
) -> None:
    """Start a process.

    Args:
        words: As for `Process`.
        cwd: Where it runs.
        env: Its environment.
        streams: The descriptors of stdin, stdout and stderr, or `CLOSED`.
        result: Where its number is written, and its exit code when it has ended.
        own_group: True if it leads a process group of its own.
    """
    asked = {
        "words": list(words),
        "cwd": cwd,
        "env": dict(env),
        "places": [place for place, one in enumerate(streams) if one != CLOSED],
        "own_group": own_group,
    }
    sent = json.dumps(asked).encode()
    descriptors = [result.fileno(), *(one for one in streams if one != CLOSED)]
    server = _server()
    socket.send_fds(server, [len(sent).to_bytes(_NUMBER_BYTES, "big")], descriptors)
    server.sendall(sent)


@functools.cache
def _server() -> socket.socket:
    """The line to the server of this process, which ends with it."""
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, __file__, str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


# The server's side --------------------------------------------------------------------------------


class Asked(NamedTuple):
    """A process that is to be."""

    words: list[str]
    cwd: str
    env: dict[str, str]
    places: list[int]
    own_group: bool


def serve(door: socket.socket) -> Callable[[], object] | None:
    """Fork until nobody asks any more; returns in each process what it is to do, and None last."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        length, ancillary, _, _ = door.recvmsg(_NUMBER_BYTES, socket.CMSG_SPACE(4 * 4))
        if not length:
            return None
        descriptors = array.array("i")
        for _, _, data in ancillary:
            descriptors.frombytes(data)
        sent = b""
        while len(sent) < int.from_bytes(length, "big"):
            sent += door.recv(min(_PART_BYTES, int.from_bytes(length, "big") - len(sent)))
        asked = Asked(**json.loads(sent))
        if asked.words[:2] == ["-m", _PYTEST]:
            importlib.import_module(_PYTEST)
        if os.fork() == 0 and _keep(descriptors[0]):
            _take_places(asked, descriptors[1:])
            return functools.partial(_run, asked)
        for one in descriptors:
            os.close(one)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _keep(descriptor: int) -> bool:
    """Fork once more, and tell the number and the end of that process, in which this is True."""
    child = os.fork()
    if child == 0:
        return True
    with socket.socket(fileno=descriptor) as result, suppress(BrokenPipeError):
        result.sendall(child.to_bytes(_NUMBER_BYTES, "big"))
        for place in range(3):
            os.close(place)
        os.closerange(3, descriptor)
        os.closerange(descriptor + 1, _DESCRIPTORS_MAX)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        result.sendall(code.to_bytes(_NUMBER_BYTES, "big", signed=True))
    os._exit(0)


def _take_places(asked: Asked, descriptors: Sequence[int]) -> None:
    """Become the process that is asked for, as far as it has one at its start."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if asked.own_group:
        os.setpgid(0, 0)
    for place in range(3):
        if place in asked.places:
            os.dup2(descriptors[asked.places.index(place)], place)
        else:
            os.close(place)
    os.closerange(3, _DESCRIPTORS_MAX)
    os.environ.clear()
    os.environ.update(asked.env)
    time.tzset()
    sys.dont_write_bytecode = bool(asked.env.get("PYTHONDONTWRITEBYTECODE"))
    is_unbuffered = bool(asked.env.get("PYTHONUNBUFFERED"))
    for place, name in enumerate(_PLACES):
        stream = _stream(place, is_unbuffered=is_unbuffered) if place in asked.places else None
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(asked.cwd)


def _stream(place: int, *, is_unbuffered: bool) -> IO[str]:
    """A stream as Python makes it at its start."""
    raw = io.FileIO(place, "wb" if place else "rb", closefd=False)
    if not place:
        return io.TextIOWrapper(io.BufferedReader(raw), "utf-8")
    return io.TextIOWrapper(
        cast("Any", raw) if is_unbuffered else io.BufferedWriter(raw),
        "utf-8",
        "backslashreplace" if place == 2 else "strict",
        line_buffering=place == 2 or raw.isatty(),
        write_through=is_unbuffered,
    )


def _run(asked: Asked) -> None:
    first, *rest = asked.words
    sys.orig_argv[:] = [sys.executable, *asked.words]
    paths = asked.env.get("PYTHONPATH", "").split(":") if asked.env.get("PYTHONPATH") else []
    sys.path[:1] = [asked.cwd, *paths]
    importlib.invalidate_caches()
    if first not in {"-c", "-m"} or rest[0] == _PYTEST:
        _forget_shardq()
    if first == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), main.__dict__)
    else:
        sys.argv[:] = asked.words
        sys.path[0] = os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")


def _forget_shardq() -> None:
    for name in [one for one in sys.modules if one.partition(".")[0] == "shardq"]:
        del sys.modules[name]


def import_all() -> None:
    """Import all that a command of `shardq` on SQLite may need."""
    for package in map(importlib.import_module, _IMPORTED):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(found.name)
    for name in ("shardq", "shardq.testing", "rich.live", "rich.table", "asyncio", "tempfile"):
        importlib.import_module(name)
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    import_all()
    door = socket.socket(fileno=int(sys.argv[1]))
    act = serve(door)
    if act is not None:
        door.detach()
        act()
