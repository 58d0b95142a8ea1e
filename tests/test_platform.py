"""Where shardq can be imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

LACKING = """
import os, signal, sys, time

sys.platform = "win32"
for module, names in (
    (os, ("register_at_fork", "fork", "setsid", "getuid")),
    (time, ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC", "clock_gettime_ns")),
    (signal, ("SIGKILL", "pthread_sigmask")),
):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
sys.modules["fcntl"] = sys.modules["resource"] = None
try:
    import {name}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("name", ["shardq", "shardq.errors", "shardq.cli", "shardq.testing"])
def test_on_windows_an_import_is_one_sentence_that_says_what_to_do(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LACKING.replace("{name}", name)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == (
        "ImportError shardq supports Linux and macOS; on Windows run it in WSL.\n"
    ), done.stderr
