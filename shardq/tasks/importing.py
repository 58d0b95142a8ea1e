"""Finds an app by its name, with a sentence for each way in which that fails."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from shardq.errors import BadApp, ShardqError, shown

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTRIBUTE = "app"
"""The name of an app within its module, unless given."""
_NAMED_MAX = 5


def load(name: str, kind: type[T]) -> T:
    """Import an app. The current directory stays on Python's path from then on.

    Args:
        name: `module:attribute`; or `module` alone, which stands for `module:app`.
        kind: The class of apps.

    Raises:
        BadApp: If it cannot be imported, or is no app; the text fits into a line.
    """
    module_name, attribute = _split(name)
    here = put_here_on_path()
    module = _imported(module_name, here)
    # Read `vars`, because a module's `__getattr__` may return something for any name.
    found = vars(module).get(attribute)
    if isinstance(found, kind):
        return found
    where = f"module {module_name} ({_file_of(module, here)})"
    what = (
        f"{attribute} of {where} is of type {type(found).__name__}, not {kind.__name__}"
        if attribute in vars(module)
        else f"{where} has no {attribute}"
    )
    apps = [name for name, one in vars(module).items() if isinstance(one, kind)]
    if apps:
        named = ", ".join(f"{module_name}:{one}" for one in apps[:_NAMED_MAX])
        raise BadApp(f"{what}; it has {named}.")
    raise BadApp(
        f"{what}, and there is no {kind.__name__} in it; add app = {kind.__name__}(), outside of "
        f"functions."
    )


def directory_of(name: str) -> Path:
    """The directory of an app's sources, found without an import.

    Args:
        name: As for `load`.

    Returns:
        The current directory if it contains the sources, or if they are not found; else the
        directory of the module, or of its outermost package.

    Raises:
        BadApp: If the name cannot be one.
    """
    top = _split(name)[0].partition(".")[0]
    here = put_here_on_path()
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return here
    if spec is None or spec.origin is None or not os.path.isfile(spec.origin):
        return here
    directory = Path(spec.origin).resolve().parent
    return here if directory.is_relative_to(here) else directory


def _split(name: str) -> tuple[str, str]:
    """The module and the attribute of a name."""
    module, colon, attribute = name.partition(":")
    attribute = attribute if colon else ATTRIBUTE
    if module.endswith(".py") or "/" in module or "\\" in module:
        dotted = module.removesuffix(".py").strip("./\\").replace("/", ".").replace("\\", ".")
        raise BadApp(
            f"{shown(name)} names a file; name the module, as it is imported from the current "
            f"directory: {dotted}:{attribute}."
        )
    words = [*module.split("."), attribute]
    if not all(word.isidentifier() for word in words):
        raise BadApp(f"{shown(name)} names no app; write module:attribute, such as app:app.")
    return module, attribute


def put_here_on_path() -> Path:
    """Let modules be imported from the current directory from now on; returns the directory."""
    here = Path.cwd()
    if str(here) not in sys.path:
        sys.path.insert(0, str(here))
    return here


def _enable_loggers() -> None:
    """Enable shardq's loggers, which `logging.config.dictConfig` disables by default."""
    for name, one in logging.Logger.manager.loggerDict.items():
        if isinstance(one, logging.Logger) and name.partition(".")[0] == "shardq":
            one.disabled = False


def _imported(name: str, here: Path) -> ModuleType:
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise _missing(name, error.name, here) from error
        place = _place_of(error, here)
        raise BadApp(
            f"module {name} cannot be imported: it needs {error.name}, which is not installed "
            f"({place})."
        ) from error
    except SystemExit as error:
        raise BadApp(
            f"module {name} cannot be imported: it calls sys.exit({error.code!r}) "
            f"({_place_of(error, here)})."
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        log.info("module %s cannot be imported", name, exc_info=True)
        text = str(error).strip().partition("\n")[0].removesuffix(".")
        # The text of shardq's own errors is enough without the class name.
        kind = "" if isinstance(error, ShardqError) else f"{type(error).__name__}: "
        said = f"{kind}{text}" if text else type(error).__name__
        if isinstance(error, SyntaxError):
            said, place = f"{kind}{error.msg}", f"{error.filename}, line {error.lineno}"
        else:
            place = _place_of(error, here)
        raise BadApp(f"module {name} cannot be imported: {said} ({place}).") from error
    _enable_loggers()
    return found


def _missing(name: str, missing: str, here: Path) -> BadApp:
    """The error of a name whose module does not exist."""
    parent, _, _ = missing.rpartition(".")
    if not parent:
        return BadApp(
            f"there is no module {missing} in {here}, nor where Python looks for installed ones; "
            f"start in the directory that has {missing}.py or {missing}/."
        )
    found = sys.modules.get(parent)
    if found is None:
        return BadApp(f"there is no module {missing}; check the name {name}.")
    if not hasattr(found, "__path__"):
        return BadApp(
            f"there is no module {missing}: {parent} is a file ({_file_of(found, here)}), no "
            f"package."
        )
    return BadApp(f"there is no module {missing} in package {parent} ({_file_of(found, here)}).")


def _file_of(module: ModuleType, here: Path) -> str:
    file = getattr(module, "__file__", None)
    if file is None:
        paths = [*getattr(module, "__path__", [])]
        file = paths[0] if paths else None
    return "built into Python" if file is None else _short(file, here)


def _place_of(error: BaseException, here: Path) -> str:
    """The line that raised an error: the innermost in the user's code, else the innermost."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen importlib") and frame.filename != __file__
    ]
    own = [frame for frame in frames if _is_in(frame.filename, here)]
    for frame in reversed(own or frames):
        return f"{_short(frame.filename, here)}, line {frame.lineno}"
    return "before its first line"


def _is_in(file: str, here: Path) -> bool:
    return Path(file).is_relative_to(here) and "site-packages" not in Path(file).parts


def _short(file: str, here: Path) -> str:
    """The name of a file, relative to the current directory if the file is below it."""
    path = Path(file)
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
