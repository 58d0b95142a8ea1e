"""A task's arguments and result, to JSON and back.

```
 welcome.put("ada", lang="de") ──► {"user": "ada", "lang": "de"} ──► welcome(user="ada", lang="de")
```

A job's body holds only the given arguments: defaults are the worker's own, so that a new default
holds for jobs that wait. The values of `*args` are under `"*"`, those of `**kwargs` under `"**"`.
`values.py` makes JSON of values, `parameters.py` calls functions.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict

from shardq.errors import BadArguments, BadResult
from shardq.model.message import BODY_BYTES_MAX
from shardq.tasks.elsewhere import option_here
from shardq.tasks.options import CallOptions
from shardq.tasks.parameters import Parameters
from shardq.tasks.unhinted import Unhinted
from shardq.tasks.values import UNREADABLE, Codec, Unfit, name_of, plain_json, plain_value

if TYPE_CHECKING:
    from shardq.tasks.parameters import Call, Given

_LISTS = {list, Sequence, Collection, Iterable, Any}
"""Allowed hints of a batch's parameter: the function is called with a list."""
_PLACE = re.compile(r"\.(\*{0,2}\w*)(.*)", re.DOTALL)


class _Coder(NamedTuple):
    """Brings arguments to JSON and back.

    Attributes:
        bind: Takes the function's arguments, and returns them as a struct; raises `TypeError` if
            they do not fit.
        codec: Writes and reads that struct.
        unhinted: Checks values that have no type hint; None if all have one.
        call: Returns the `args` and `kwargs` for a struct.
    """

    bind: Callable[..., Given]
    codec: Codec
    unhinted: Unhinted | None
    call: Callable[[Given], Call]


class TaskSignature:
    """The parameters and the result of a task's function, as JSON.

    Hints are resolved when they are first needed, so that a function may name types defined after
    it.

    Args:
        function: A function, or anything else that can be called and has parameters.
        name: The task's name, for errors.
        batch: True if its argument is a list, of which each job holds one item.

    Attributes:
        shown: Its parameters for people, `(user: str, *, lang: str = 'en')`.

    Raises:
        BadArguments: If its parameters cannot be read, are not those of a batch, or are not what
            its decorator takes.
    """

    def __init__(self, function: Callable[..., Any], *, name: str, batch: bool = False) -> None:
        self._task = f"task {name}"
        self._batch = batch
        self._parameters = Parameters(function, self._task)
        self._parameters.check_decorators(function, is_batch=batch)
        self._coder: _Coder | None = None
        self._result: Codec | None = None
        self._item_shown = ""
        self.shown: str = self._parameters.shown
        if batch and not self._parameters.takes_a_list():
            raise BadArguments(
                f"{self._task} takes a batch, so its function must take one list; it takes "
                f"{self.shown}."
            )

    def check(self, *, result: bool = False) -> None:
        """Resolve all hints now, as a worker does before it begins.

        Args:
            result: True if results are kept, so that their hint is needed too.

        Raises:
            BadArguments: If a parameter's hint cannot be resolved, or JSON cannot give it back.
            BadResult: The same for the result's hint.
        """
        self._made()
        if result:
            self._result_codec()

    # Arguments ------------------------------------------------------------------------------------

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The body of a job that calls the function with these arguments.

        Raises:
            BadArguments: If the function does not take them, or they do not match its hints, cannot
                be JSON or are larger than 1 MiB.
        """
        bind, codec, unhinted, _ = self._coder or self._made()
        try:
            given = bind(*args, **kwargs)
        except TypeError as error:
            misbound = self._parameters.misbound(args, kwargs)
            raise BadArguments(f"{self._task} {misbound}{_of_an_option(kwargs)}") from error
        try:
            body = codec.write(given)
            if unhinted is not None:
                unhinted.check(given)
        except Unfit as unfit:
            self._refuse(unfit, asdict(given))
        if len(body) > BODY_BYTES_MAX:
            raise BadArguments(
                f"{self._task}: its arguments are {len(body):,} bytes of JSON, and a job has room "
                f"for {BODY_BYTES_MAX:,}; store them elsewhere and give their address."
            )
        return body

    def decode(self, body: bytes) -> Call:
        """The arguments, `args` and `kwargs`, of a job with this body.

        Raises:
            BadArguments: If the function does not take them.
        """
        _, codec, _, call = self._coder or self._made()
        try:
            given = codec.read(body)
        except Unfit as unfit:
            self._refuse_body(unfit, body)
        return call(given)

    def encode_item(self, item: Any) -> bytes:
        """The body of a job that holds one item of a batch, `{"users": "ada"}`.

        Raises:
            BadArguments: If the item does not match the hint, cannot be JSON or is larger than 1
                MiB.
        """
        return self.encode((item,), {})

    def decode_item(self, body: bytes) -> Any:
        """The item of a batch that a job with this body holds.

        Raises:
            BadArguments: If the item does not match the hint.
        """
        _, kwargs = self.decode(body)
        [item] = kwargs.values()
        return item

    # The result -----------------------------------------------------------------------------------

    def encode_result(self, value: Any) -> bytes:
        """The value that the function returned, as JSON.

        Raises:
            BadResult: If the value does not match the return hint, if JSON would give back a
                different value, or if it is larger than 1 MiB.
        """
        codec = self._result or self._result_codec()
        try:
            data = codec.write(value)
        except Unfit as unfit:
            raise BadResult(f"{self._task}: its result{unfit.path} {unfit.text}.") from unfit
        if len(data) > BODY_BYTES_MAX:
            raise BadResult(
                f"{self._task}: its result is {len(data):,} bytes of JSON, and {BODY_BYTES_MAX:,} "
                f"are kept; store it elsewhere and return its address."
            )
        return data

    def decode_result(self, data: bytes) -> Any:
        """The value that `encode_result` was given.

        Raises:
            BadResult: If it does not match the return hint, which may have changed.
        """
        codec = self._result or self._result_codec()
        try:
            return codec.read(data)
        except Unfit as unfit:
            raise BadResult(f"{self._task}: its result{unfit.path} {unfit.text}.") from unfit

    # Making coders --------------------------------------------------------------------------------

    def _made(self) -> _Coder:
        """The coder of the arguments, made when it is first needed."""
        if self._coder is None:
            self._coder = self._item_coder() if self._batch else self._arguments_coder()
        return self._coder

    def _arguments_coder(self) -> _Coder:
        parameters = self._parameters
        hints = {name: parameters.hint_of(name) for name in parameters.names}
        struct = parameters.struct(hints)
        codec = self._codec(struct, hints)
        return _Coder(parameters.binder(struct), codec, _unhinted(struct), parameters.caller())

    def _item_coder(self) -> _Coder:
        name = self._parameters.names[0]
        hint = self._parameters.hint_of(name)
        if (typing.get_origin(hint) or hint) not in _LISTS:
            raise BadArguments(
                f"{self._task} takes a batch, so its argument {name} must be a list, list[int] "
                f"say, not {name_of(hint)}."
            )
        item = (*typing.get_args(hint), Any)[0]
        self._item_shown = "" if item is Any else name_of(item)
        struct = msgspec.defstruct("Item", [(name, item)], forbid_unknown_fields=True)
        codec = self._codec(struct, {name: item})
        return _Coder(struct, codec, _unhinted(struct), lambda given: ((), asdict(given)))

    def _codec(self, struct: type[Given], hints: Mapping[str, Any]) -> Codec:
        """The codec of a struct of arguments; raises an error that names an unusable hint."""
        try:
            return Codec(struct)
        except UNREADABLE as error:
            for name, hint in hints.items():
                self._try(hint, name)
            raise BadArguments(f"{self._task}: its arguments: {error}.") from error

    def _try(self, hint: Any, name: str) -> None:
        try:
            Codec(hint)
        except UNREADABLE as error:
            raise BadArguments(
                f"{self._task}: argument {name} is of a type that JSON cannot give back, "
                f"{self._parameters.written_hint(name) or name_of(hint)}: {error}."
            ) from error

    def _result_codec(self) -> Codec:
        """The codec of the result, made when it is first needed."""
        if self._result is None:
            try:
                hint = self._parameters.result_hint()
                self._result = Codec(hint)
            except (*UNREADABLE, SyntaxError) as error:
                raise BadResult(
                    f"{self._task}: its result is of a type that JSON cannot give back: {error}."
                ) from error
        return self._result

    # Mistakes -------------------------------------------------------------------------------------

    def _refuse(self, unfit: Unfit, values: Mapping[str, Any]) -> NoReturn:
        """Raise the error of wrong arguments.

        Args:
            unfit: The mistake.
            values: The given arguments.
        """
        place = _PLACE.fullmatch(unfit.path)
        if place is None:
            # The error does not say which argument cannot be JSON: try each one.
            for name, value in values.items():
                try:
                    _ = value is UNSET or plain_json(value)
                except Unfit as own:
                    raise BadArguments(f"{self._task}: argument {name} {own.text}.") from unfit
            raise BadArguments(f"{self._task}: its arguments {unfit.text}.") from unfit
        name, rest = place.groups()
        is_whole = unfit.given and not rest and name in self._parameters.names
        hint = self._item_shown or self._parameters.written_hint(name) if is_whole else ""
        text = f"must be {hint}, not {unfit.given}" if hint else unfit.text
        shown_name = self._parameters.shown_name(name)
        raise BadArguments(f"{self._task}: argument {shown_name}{rest} {text}.") from unfit

    def _refuse_body(self, unfit: Unfit, body: bytes) -> NoReturn:
        """Raise the error of a body that cannot be read."""
        values = plain_value(body)
        if not isinstance(values, dict):
            values = {}
            if unfit.given:
                raise BadArguments(
                    f'{self._task}: its arguments must be a JSON object, {{"name": value}}, not '
                    f"{unfit.given}."
                ) from unfit
        elif not unfit.path:
            misbound = self._parameters.misbound((), values)
            raise BadArguments(f"{self._task} {misbound}") from unfit
        self._refuse(unfit, values)


def _unhinted(struct: type[Given]) -> Unhinted | None:
    found = Unhinted(struct)
    return found if found.is_there else None


def _of_an_option(kwargs: Iterable[str]) -> str:
    """A hint for a caller that gave an option among the arguments; empty if there is none."""
    for name in kwargs:
        instead = option_here(name)
        if name in CallOptions.__annotations__:
            return f" An option goes before: using({name}=..).put(..)."
        if instead is not None:
            return f" As an option, in using(..).put(..): {instead}."
    return ""
