"""The names of tasks: a function's module and name, however the program was started.

```
 f of the file         python ns/send.py, or      shardq work ns.send:app,
                       go.py beside, imports it   python -m ns.send
 ns/send.py            send.f                     ns.send.f, found as send.f too
 ns/send.py, with
   ns/__init__.py      ns.send.f                  ns.send.f
```

A directory without `__init__.py` is part of a module's name only in programs that import it by that
name. So a task has its shorter names as well, by which a worker also finds it.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardq.tasks.parameters import globals_of

if TYPE_CHECKING:
    from collections.abc import Callable

_MAINS = ("__main__", "__mp_main__")
"""The module of the started program, also in a child of `multiprocessing`."""


def name_of(function: Callable[..., Any]) -> str:
    """Module and name of a function; the name that a worker has for it after an import."""
    function = _inner(function)
    module = getattr(function, "__module__", None) or ""
    if module in _MAINS:
        # Read the function's globals: the program that a profiler runs is not in `sys.modules`.
        program = globals_of(function)
        spec, path = program.get("__spec__"), program.get("__file__")
        if spec is not None:
            module = spec.name.removesuffix(".__main__")
        else:
            here = None if path is None else Path(path).absolute()
            module = "" if here is None else _in_package(here.parent, here.stem)
    elif (directory := _program_directory()) is not None:
        place = directory.joinpath(*module.split("."))
        file = getattr(sys.modules.get(module), "__file__", None)
        if file is not None and Path(file).with_suffix("") in (place, place / "__init__"):
            module = _in_package(directory, module)
    return ".".join(part for part in (module, _qualified(function)) if part)


def shorter_names(function: Callable[..., Any]) -> list[str]:
    """The function's names in a program that is started in a directory that is no package.

    The name of its module leaves out directories that have no `__init__.py`.
    """
    function = _inner(function)
    parts = (getattr(function, "__module__", None) or "").split(".")
    packages = [".".join(parts[:length]) for length in range(1, len(parts))]
    return [
        ".".join([*parts[length:], _qualified(function)])
        for length, package in enumerate(packages, 1)
        if package in sys.modules and getattr(sys.modules[package], "__file__", None) is None
    ]


def _inner(function: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(function, partial):
        function = function.func
    return function


def _qualified(function: Callable[..., Any]) -> str:
    qualified: str = getattr(function, "__qualname__", type(function).__qualname__)
    return qualified.replace(".<locals>", "")


def _program_directory() -> Path | None:
    """The directory of a program that was started by its path; its modules are imported there."""
    program = vars(sys.modules["__main__"])
    path = program.get("__file__")
    if path is None or program.get("__spec__") is not None:
        return None
    return Path(path).absolute().parent


def _in_package(top: Path, module: str) -> str:
    """The name of a module in a directory, including the packages around the directory."""
    parts = [module]
    for directory in (top, *top.parents):
        if directory == Path.cwd() or not (directory / "__init__.py").is_file():
            break
        parts.insert(0, directory.name)
    return ".".join(parts)
