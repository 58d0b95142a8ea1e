"""The parameters of a task's function: read, bound to a caller's arguments, and used in a call.

The arguments of a call are held in a msgspec struct made for the function: the struct binds them in
C, without room for those not given. Errors are explained in Python, afterwards.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from inspect import Parameter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, Union, Unpack

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from shardq.errors import BadArguments, shown
from shardq.tasks.hints import readable
from shardq.tasks.values import UNREADABLE, name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Given: TypeAlias = msgspec.Struct
"""The arguments of one call; those not given are UNSET."""
Call: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The `args` and `kwargs` of a function's call."""

_BY_PLACE = {Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD}
_BY_NAME = {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}
_STARS: dict[Any, str] = {Parameter.VAR_POSITIONAL: "*", Parameter.VAR_KEYWORD: "**"}

_REST = "make a task of a function that takes the rest, and calls this one"
"""The remedy if a decorator passes arguments."""


class Parameters:
    """The parameters of one function.

    Args:
        function: A function, or anything else that can be called and has parameters.
        task: The task's name, for errors.

    Attributes:
        names: The parameters' names, in order.
        shown: All parameters as text for people, `(user: str, *, lang: str = 'en')`.

    Raises:
        BadArguments: If they cannot be read, or one has a name that Python reserves.
    """

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self._task = task
        self._globals = globals_of(function)
        self._signature = _signature_of(function, task)
        self._all = self._signature.parameters
        self._is_decorated = hasattr(function, "__wrapped__")
        self.names = list(self._all)
        if hidden := [name for name in self.names if name.startswith("__")]:
            raise BadArguments(
                f"{task}: argument {hidden[0]} has a name of those that Python keeps for itself; "
                f"name it without the underscores, before a / if it is to be given by place."
            )
        self.shown = _as_written(self._signature)

    def takes_a_list(self) -> bool:
        """True if one positional argument is enough, as for a function that takes a batch."""
        kinds = [one.kind for one in self._all.values()]
        needed = [one.name for one in self._all.values() if _is_needed(one)]
        return bool(kinds) and kinds[0] in _BY_PLACE and needed in ([], self.names[:1])

    def check_decorators(self, function: Any, *, is_batch: bool) -> None:
        """Refuse a decorator that cannot be called as a worker calls the function beneath it.

        A decorator of `*args, **kwargs` is accepted unseen.

        Args:
            function: The outermost function.
            is_batch: True if it is called with a list, by position.

        Raises:
            BadArguments: If there is such a decorator.
        """
        calls: list[tuple[list[None], dict[str, None]]] = (
            [([None], {})]
            if is_batch
            else [
                (
                    [None for one in taken if one.kind is Parameter.POSITIONAL_ONLY],
                    {one.name: None for one in taken if one.kind in _BY_NAME},
                )
                for taken in (list(self._all.values()), [*filter(_is_needed, self._all.values())])
            ]
        )
        while hasattr(function, "__wrapped__") and not hasattr(function, "__signature__"):
            if inspect.ismethod(function):
                return
            try:
                own = inspect.signature(function, follow_wrapped=False)
            except ValueError:
                # A decorator that is built into Python may have no signature.
                return
            try:
                for args, kwargs in calls:
                    own.bind(*args, **kwargs)
            except TypeError as error:
                raise BadArguments(
                    f"{self._task}: the function of its decorator takes {_as_written(own)}, and is "
                    f"to be called with what the one beneath it takes, {self.shown}, by name; "
                    f"{_REST}."
                ) from error
            function = function.__wrapped__

    # Hints ----------------------------------------------------------------------------------------

    def hint_of(self, name: str) -> Any:
        """The type of a parameter; of `*args` a tuple, of `**kwargs` a dict.

        Raises:
            BadArguments: If it cannot be resolved.
        """
        one = self._all[name]
        try:
            hint = self._resolved(one.annotation)
        except (*UNREADABLE, SyntaxError) as error:
            raise BadArguments(
                f"{self._task}: the type hint of argument {name}, {name_of(one.annotation)}, "
                f"cannot be resolved: {error}; define or import it at the top of the module."
            ) from error
        try:
            hint = readable(hint)
        except UNREADABLE as error:
            raise BadArguments(
                f"{self._task}: argument {name} is of a type that JSON cannot give back, "
                f"{self.written_hint(name)}: {error}."
            ) from error
        if one.kind is Parameter.VAR_POSITIONAL:
            return tuple.__class_getitem__((hint, ...))
        if one.kind is Parameter.VAR_KEYWORD:
            is_unpacked = typing.get_origin(hint) is Unpack
            return typing.get_args(hint)[0] if is_unpacked else dict.__class_getitem__((str, hint))
        return hint

    def result_hint(self) -> Any:
        """The return type of the function, `Any` without a hint.

        Raises:
            TypeError, NameError, AttributeError, SyntaxError: If it cannot be resolved.
        """
        return readable(self._resolved(self._signature.return_annotation))

    def shown_name(self, name: str) -> str:
        """The name of a body's argument for people: `*` becomes `*numbers`, say."""
        stars = {_STARS[one.kind]: one.name for one in self._all.values() if one.kind in _STARS}
        return f"{name}{stars.get(name, '')}"

    def written_hint(self, name: str) -> str:
        """The hint of a parameter as written; empty if it takes anything."""
        written = self._all[name].annotation
        free = {Parameter.empty, Any, object, "Any", "object", "typing.Any"}
        return "" if written in free else name_of(written)

    def _resolved(self, written: Any) -> Any:
        """A hint, which may be text, as a type."""
        if written is Parameter.empty:
            return Any
        one = SimpleNamespace(__annotations__={"it": written})
        hint = typing.get_type_hints(one, self._globals, include_extras=True)["it"]
        return Any if hint is object else hint

    # Binding --------------------------------------------------------------------------------------

    def struct(self, hints: Mapping[str, Any]) -> type[Given]:
        """A struct for the arguments of a call.

        Args:
            hints: The types of all parameters, by name.
        """
        made: type[Given] = msgspec.Struct
        for by_place in (True, False):
            made = msgspec.defstruct(
                "Arguments",
                [
                    _field(one, hints[one.name])
                    for one in self._all.values()
                    if (one.kind in _BY_PLACE) is by_place
                ],
                bases=(made,),
                kw_only=not by_place,
                forbid_unknown_fields=True,
            )
        return made

    def binder(self, struct: type[Given]) -> Callable[..., Given]:
        """A function that returns the struct for a call's arguments, or raises `TypeError`."""
        if not self._has_more_than_names():
            return struct
        signature = self._signature
        # Give empty `**kwargs` that have required names, so that the names are checked.
        fields = msgspec.structs.fields(struct)
        empty: dict[str, Any] = {
            one.name: {} for one in fields if one.encode_name == "**" and one.required
        }

        def bind(*args: Any, **kwargs: Any) -> Given:
            return struct(**{**empty, **signature.bind(*args, **kwargs).arguments})

        return bind

    def caller(self) -> Callable[[Given], Call]:
        """The function that returns the `args` and `kwargs` of a call for a struct."""
        if self._has_more_than_names():
            return self._call
        if all(map(_is_needed, self._all.values())):
            return lambda given: ((), asdict(given))
        return lambda given: ((), _as_given(given))

    def misbound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Why the function does not take these arguments, to be read after the task's name."""
        misfit = self._misfit(args, kwargs)
        is_left = self._is_decorated and misfit.startswith("needs ")
        hint = f" If a decorator gives it, {_REST}." if is_left else ""
        return f"{misfit}; it takes {self.shown}.{hint}"

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        kinds = {one.kind for one in self._all.values()}
        placed = [name for name, one in self._all.items() if one.kind in _BY_PLACE]
        named = {name for name, one in self._all.items() if one.kind in _BY_NAME}
        stars = {_STARS[kind] for kind in kinds & _STARS.keys()}
        for name in [one for one in kwargs if one not in stars]:
            if name in placed[: len(args)] and name in named:
                return f"was given the argument {name} twice"
            if name not in named and Parameter.VAR_KEYWORD not in kinds:
                return f"has no argument {name}{' by name' if name in placed else ''}"
        if len(args) > len(placed) and Parameter.VAR_POSITIONAL not in kinds:
            plural = "" if len(placed) == 1 else "s"
            return f"takes {len(placed)} argument{plural} by place, not {len(args)}"
        reached = {*placed[: len(args)], *(named & kwargs.keys())}
        for one in self._all.values():
            if _is_needed(one) and one.name not in reached:
                return f"needs the argument {one.name}"
        return "does not take these arguments"

    def _has_more_than_names(self) -> bool:
        """True if some are positional only, or there is `*args` or `**kwargs`."""
        return any(one.kind not in _BY_NAME for one in self._all.values())

    def _call(self, struct: Given) -> Call:
        """The `args` and `kwargs` of a function that has more than named parameters.

        Raises:
            BadArguments: If another language gave arguments that no Python call can.
        """
        given = _as_given(struct)
        by_kind = {one.kind: name for name, one in self._all.items()}
        more = given.pop(by_kind.get(Parameter.VAR_POSITIONAL, ""), ())
        others = given.pop(by_kind.get(Parameter.VAR_KEYWORD, ""), {})
        for name in others:
            if name in self._all and self._all[name].kind in _BY_NAME:
                raise BadArguments(f"{self._task} was given the argument {name} twice.")
        placed = [
            name
            for name, one in self._all.items()
            if one.kind is Parameter.POSITIONAL_ONLY or (more and one.kind in _BY_PLACE)
        ]
        args = [given.pop(name) for name in placed if name in given]
        left_out = [name for name in placed if getattr(struct, name) is UNSET]
        if left_out and (more or placed.index(left_out[0]) < len(args)):
            raise BadArguments(
                f"{self._task} needs the argument {left_out[0]} before those that follow it by "
                f"place; it takes {self.shown}."
            )
        return (*args, *more), {**given, **others}


# Reading a function -------------------------------------------------------------------------------


def globals_of(function: Any) -> dict[str, Any]:
    """The names of the module that contains a function's hints."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    if not hasattr(function, "__globals__"):
        # The function is an object with a `__call__`.
        function = inspect.unwrap(type(function).__call__)
    return getattr(function, "__globals__", {})


def is_method(function: object) -> bool:
    """True if a function needs an object or a class first, which a worker cannot pass."""
    if not inspect.isfunction(function):
        return isinstance(function, classmethod)
    scope = function.__qualname__.rpartition(".")[0]
    first = function.__code__.co_varnames[:1] if function.__code__.co_argcount else ()
    return bool(scope) and not scope.endswith("<locals>") and first in (("self",), ("cls",))


def is_dispatching(function: object) -> bool:
    """True if a function was made by `functools.singledispatch`."""
    return (
        inspect.isfunction(function)
        and hasattr(function, "registry")
        and (hasattr(function, "dispatch"))
    )


def _signature_of(function: Callable[..., Any], task: str) -> inspect.Signature:
    """A function's signature, its hints as written."""
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        # Leave hints unevaluated, because they may name types that are defined later.
        from annotationlib import Format

        options["annotation_format"] = Format.FORWARDREF
    try:
        return inspect.signature(function, **options)
    except (TypeError, ValueError) as error:
        raise BadArguments(
            f"{task}: the parameters of {shown(function)} cannot be read; wrap it in a function "
            f"of your own."
        ) from error


class _Written:
    """A hint that `inspect` shows as written, text without quotes."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint

    def __repr__(self) -> str:
        return name_of(self._hint)


def _as_written(signature: inspect.Signature) -> str:
    """Parameters as their function's source shows them, without the result."""
    written = [
        one
        if one.annotation is Parameter.empty
        else one.replace(annotation=_Written(one.annotation))
        for one in signature.parameters.values()
    ]
    return str(inspect.Signature(written))


def _is_needed(one: Parameter) -> bool:
    return one.kind not in _STARS and one.default is Parameter.empty


def _field(one: Parameter, hint: Any) -> Any:
    """A parameter as a field of a struct."""
    if one.kind in _STARS:
        # If the TypedDict of `**kwargs` requires names, the field is required, so that they are
        # checked.
        needed = one.kind is Parameter.VAR_KEYWORD and getattr(hint, "__required_keys__", None)
        default = msgspec.NODEFAULT if needed else UNSET
        field = msgspec.field(name=_STARS[one.kind], default=default)
        return (one.name, hint if needed else _or_unset(hint), field)
    return (one.name, hint) if _is_needed(one) else (one.name, _or_unset(hint), UNSET)


def _or_unset(hint: Any) -> Any:
    return Union[hint, UnsetType]  # noqa: UP007 - `|` is not for hints that are text


def _as_given(struct: Given) -> dict[str, Any]:
    return {name: value for name, value in asdict(struct).items() if value is not UNSET}
