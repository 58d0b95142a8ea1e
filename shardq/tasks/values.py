"""Values to JSON and back, each by its type hint.

```
 value ──► JSON ──► read back by the hint ──► equal? the JSON is stored
                                              else refused where it is put, not where it is read
```

JSON knows fewer types than Python: a date for a text hint would be read as text, and any text
for a bytes hint as other bytes. So each value is read back at once, which costs under half a
microsecond. The formats are msgspec's, and pydantic's for models. `arguments.py` knows the hints of
a task.
"""

from __future__ import annotations

import math
import re
import sys
import typing
from collections.abc import Container, Iterable, Reversible
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
)
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
from msgspec import inspect

from shardq.errors import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PYDANTIC_MIN = (2, 11)
"""The version from which a model reads its own output, whatever aliases its fields have."""
_AT = re.compile(r"(?P<text>.*?)(?: - at (?P<key>`key` in )?`\$(?P<path>.*)`)?", re.DOTALL)
_WANTED = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_STEP = re.compile(r"\.(\*{1,2}|\w+)|\[(\d+)\]")
UNREADABLE = (TypeError, NameError, AttributeError)
"""Errors of a hint that cannot be evaluated, or for which msgspec has no reader."""
_AS_TEXT = (
    PurePath, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
)  # fmt: skip
"""Types that msgspec does not know, and whose values are made from text."""
_AS_LIST = (Iterable, Reversible, Container)
"""Abstract types that msgspec does not know; a list is an instance."""
_NAME_IT = "name its type in the type hint"
_JSON_WORDS = {"array": "list", "object": "dict", "null": "None"}


class Unfit(Exception):
    """A value that JSON, or its type hint, does not accept.

    Attributes:
        text: The mistake, to be read after the place's name, `must be int, not str ('4')` say.
        path: The place below the given value, `.items[0].price` say; empty: the value itself.
        given: The given value, `str ('4')` say, if it is of a wrong type; else empty.
    """

    def __init__(self, text: str, path: str = "", given: str = "") -> None:
        super().__init__(text)
        self.text = text
        self.path = path
        self.given = given


class Codec:
    """Writes and reads values of one type hint.

    Args:
        hint: A type that msgspec knows, possibly with pydantic models and `object` in it.

    Raises:
        TypeError: If JSON cannot give such values back; the text gives the reason.
        NameError, AttributeError: If a class in it refers to an undefined name.
    """

    def __init__(self, hint: Any) -> None:
        try:
            self._read = msgspec.json.Decoder(hint, dec_hook=_read_custom).decode
        except TypeError as error:
            # Cut the text, because its rest repeats the hint in full.
            raise TypeError(_lowered(str(error).partition(" - type `")[0])) from error
        for custom in _customs(inspect.type_info(hint)):
            if not (_is_known(custom) or is_model(custom)):
                raise TypeError(f"{name_of(custom)} is no plain type, dataclass or pydantic model")

    def write(self, value: Any) -> bytes:
        """A value as JSON.

        Raises:
            Unfit: If the value does not match the hint, or would be read as another value.
        """
        data = plain_json(value)
        try:
            back = self._read(data)
            lost = None if back == value else _lost(value, back, "")
        except msgspec.DecodeError as error:
            raise _unfit(error, value) from error
        except RecursionError as error:
            raise _too_deep() from error
        if lost is not None:
            raise lost
        return data

    def read(self, data: bytes) -> Any:
        """The value of JSON that was written here or by another language.

        Raises:
            Unfit: If it is no JSON, or does not match the hint.
        """
        try:
            return self._read(data)
        except msgspec.ValidationError as error:
            raise _unfit(error, plain_value(data)) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Unfit(f"must be JSON: {_lowered(str(error))}") from error
        except RecursionError as error:
            raise _too_deep() from error


class _Any(type):
    def __instancecheck__(cls, _value: object) -> bool:
        # msgspec checks the type of a value that it has read by `isinstance`.
        return True


class TaggedUnion(metaclass=_Any):
    """A union whose members JSON distinguishes by a field, or by their JSON types.

    `hints.py` derives a class for each such hint; there are no instances.

    Attributes:
        tag: The field; empty if only one member is an object.
        by_tag: The codec of objects, by the field's value.
        rest: The codec of other values; None if there are none.
    """

    tag: ClassVar[str]
    by_tag: ClassVar[dict[Any, Codec]]
    rest: ClassVar[Codec | None]

    @classmethod
    def read(cls, plain: Any) -> Any:
        """A member, from plain JSON values.

        Raises:
            ValueError: If no member matches.
        """
        found = cls.rest
        if isinstance(plain, dict):
            value = plain.get(cls.tag, "")
            found = cls.by_tag.get(value, found) if isinstance(value, str | int) else found
        if found is None:
            raise ValueError(f"its {cls.tag} must be one of {', '.join(map(repr, cls.by_tag))}")
        return _read_by(found, plain)


def plain_json(value: Any) -> bytes:
    """A value as JSON, without regard to a hint.

    Raises:
        Unfit: If JSON cannot hold it.
    """
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise Unfit("holds half a surrogate pair; decode it from UTF-16 first") from error
    except RecursionError as error:
        raise _too_deep() from error
    except (TypeError, ValueError, OverflowError) as error:
        raise Unfit(f"cannot be JSON: {_lowered(str(error))}") from error


def plain_value(data: bytes) -> Any:
    """The plain values of JSON; None if it is no JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def name_of(hint: Any) -> str:
    """A type hint as a user writes it.

    >>> name_of(list[int]), name_of(datetime), name_of("Order | None")
    ('list[int]', 'datetime', 'Order | None')
    """
    if isinstance(hint, str):
        return hint
    if isinstance(hint, type) and not hasattr(hint, "__args__"):
        return hint.__name__
    return repr(hint).replace("typing.", "").replace("NoneType", "None")


# Types that msgspec does not know -----------------------------------------------------------------


def _is_known(custom: Any) -> bool:
    """True if a type that msgspec does not know is read here."""
    is_named = isinstance(custom, type) and issubclass(custom, (TaggedUnion, *_AS_TEXT, *_TIMES))
    return custom is object or custom in _AS_LIST or is_named


_TIMES = (date, time)
"""Types from which pendulum derives, and tests that freeze the time."""
_PLAIN: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (date, lambda value: value.isoformat()),
    (time, lambda value: value.isoformat()),
    (timedelta, timedelta.__pos__),
    (str, str.__str__),
    (int, int.__pos__),
    (float, float.__pos__),
    (Decimal, str),
    (bytes, bytes),
    *((kind, str) for kind in _AS_TEXT),
)
"""Types whose derived classes msgspec does not know, and the function to a plain value."""


def _write_custom(value: Any) -> Any:
    """The replacement that msgspec writes for a value of a type that it does not know."""
    if is_model(type(value)):
        return msgspec.Raw(_model_json(value))
    for made, plain in _PLAIN:
        if isinstance(value, made):
            return plain(value)
    if value is None or isinstance(value, tuple | frozenset):
        raise TypeError(f"it has the key {shown(value)}, and keys are text or numbers")
    raise TypeError(f"it holds {_kind(value)}; give plain values, a dataclass or a pydantic model")


def _model_json(model: Any) -> bytes:
    # No warnings are needed: wrong values are found when the JSON is read back.
    text: str = model.model_dump_json(by_alias=False, round_trip=True, warnings=False)
    return text.encode()


def _read_custom(hint: Any, plain: Any) -> Any:
    """A value of a type that msgspec does not know, from plain JSON values."""
    if hint is object:
        return plain
    kind = typing.get_origin(hint) or hint
    if kind in _AS_LIST:
        return _read_by(Codec(list.__class_getitem__(typing.get_args(hint) or Any)), plain)
    if issubclass(kind, TaggedUnion):
        return kind.read(plain)
    if issubclass(kind, _TIMES):
        return hint.fromisoformat(plain)
    if issubclass(kind, _AS_TEXT):
        if not isinstance(plain, str):
            raise TypeError(f"must be {kind.__name__}, not {_kind(plain)}")
        return hint(plain)
    pydantic = sys.modules["pydantic"]
    try:
        # Validate JSON, because a strict model takes a date from text only in JSON.
        return hint.model_validate_json(msgspec.json.encode(plain), by_alias=True, by_name=True)
    except pydantic.ValidationError as error:
        [first, *_] = error.errors(include_url=False, include_context=False)
        path = ".".join(map(str, first["loc"]))
        raise ValueError(f"{hint.__name__}{path and '.'}{path}: {first['msg']}") from error


def _read_by(codec: Codec, plain: Any) -> Any:
    """A value of another hint, from plain JSON values.

    Raises:
        ValueError: If it does not match the hint.
    """
    try:
        return codec.read(msgspec.json.encode(plain))
    except Unfit as unfit:
        raise ValueError(f"{unfit.path and f'its {unfit.path} '}{unfit.text}") from unfit


def is_model(made: Any) -> bool:
    """True if a type is a model of pydantic. Does not import pydantic.

    Raises:
        TypeError: If the model is of a pydantic that is too old.
    """
    pydantic = sys.modules.get("pydantic")
    if pydantic is None or not isinstance(made, type):
        return False
    if not issubclass(made, pydantic.BaseModel):
        return False
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) < _PYDANTIC_MIN:
        raise TypeError(f"pydantic {pydantic.VERSION} is too old for {made.__name__}; take 2.11")
    return True


_encoder = msgspec.json.Encoder(enc_hook=_write_custom)


def _customs(info: object) -> Iterator[Any]:
    """The types in a hint that msgspec does not know."""
    return (node.cls for node in nodes(info) if isinstance(node, inspect.CustomType))


def nodes(info: object) -> Iterator[object]:
    """All types in a hint."""
    seen: set[int] = set()
    left: list[object] = [info]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, tuple):
            left.extend(node)
        elif isinstance(node, inspect.Type | inspect.Field):
            left.extend(msgspec.structs.astuple(node))


# Mistakes -----------------------------------------------------------------------------------------


def _unfit(error: msgspec.DecodeError, value: Any) -> Unfit:
    """The error of msgspec about a value, in our words."""
    found = _AT.fullmatch(str(error))
    text, path = (found["text"], found["path"] or "") if found else (str(error), "")
    wanted = _WANTED.fullmatch(text)
    instead = wanted and f"must be {_words(wanted['wanted'])}, not {_words(wanted['got'])}"
    if found and found["key"]:
        return Unfit(f"has a key that {instead or f'does not fit: {_lowered(text)}'}", path)
    try:
        given = _at(value, path)
    except (LookupError, TypeError, AttributeError, ValueError):
        # The value is in a dict or a set, whose items have no numbers.
        return Unfit(instead or f"does not fit: {_lowered(text)}", path)
    if isinstance(given, float) and not math.isfinite(given):
        return _endless(given, path)
    if wanted is not None:
        return Unfit(f"must be {_words(wanted['wanted'])}, not {_kind(given)}", path, _kind(given))
    is_of_another = text.startswith("Invalid ")
    return Unfit(
        f"is {shown(given)}: {_lowered(text)}", path, _kind(given) if is_of_another else ""
    )


def _words(types: str) -> str:
    """JSON's names of types as Python's."""
    return " | ".join(_JSON_WORDS.get(word, word) for word in types.split(" | "))


def _at(value: Any, path: str) -> Any:
    """The value at a path of msgspec's."""
    if _STEP.sub("", path):
        raise LookupError(path)
    for name, number in _STEP.findall(path):
        if number:
            value = value[int(number)]
        elif isinstance(value, dict):
            value = value[name]
        elif isinstance(value, msgspec.Struct):
            # A struct's JSON may use other names than its attributes.
            at = value.__struct_encode_fields__.index(name)
            value = getattr(value, value.__struct_fields__[at])
        else:
            value = getattr(value, name)
    return value


def _lost(given: Any, back: Any, path: str) -> Unfit | None:
    """The first loss of a value in JSON; None if the value that is read back is as good."""
    if isinstance(given, float) and not math.isfinite(given):
        return _endless(given, path)
    if isinstance(given, list | tuple) and isinstance(back, list | tuple):
        # A tuple for a sequence hint is read as a list. A named tuple would lose its names.
        if type(given) in {list, tuple, type(back)} and len(given) == len(back):
            return _first(
                _lost(one, other, f"{path}[{at}]")
                for at, (one, other) in enumerate(zip(given, back, strict=True))
            )
    elif isinstance(given, dict) and isinstance(back, dict):
        return _lost_of_dict(given, back, path)
    elif type(given) is type(back):
        return _lost_of_fields(given, back, path)
    elif given == back:
        return None
    return _of_another_type(given, back, path)


def _of_another_type(given: Any, back: Any, path: str) -> Unfit:
    if isinstance(back, str | int | float | list | dict):
        # The hint may be None as well.
        return changed(given, type(back), path)
    return Unfit(f"must be {type(back).__name__}, not {_kind(given)}", path, _kind(given))


def _lost_of_dict(given: dict[Any, Any], back: dict[Any, Any], path: str) -> Unfit | None:
    for key in given:
        if key in back:
            continue
        instead = "its type hint does not know"
        if not isinstance(key, str):
            instead = f"JSON gives back as text: {_NAME_IT}"
        return Unfit(f"has the key {shown(key)}, which {instead}", path)
    return _first(_lost(one, back[key], f"{path}[{key!r}]") for key, one in given.items())


def _lost_of_fields(given: Any, back: Any, path: str) -> Unfit | None:
    """The first field of a value that differs after the value was stored as JSON and read back."""
    if given == back or _is_same_moment(given, back):
        return None
    names = field_names(given)
    if not names:
        said = "which JSON cannot hold exactly"
        if shown(back) != shown(given):
            said = f"which is read back as {shown(back)}"
        return Unfit(f"is {_kind(given)}, {said}", path)
    return _first(
        _lost(getattr(given, name), getattr(back, name, None), f"{path}.{name}") for name in names
    )


def changed(value: Any, back: type, path: str) -> Unfit:
    """The error of a value that JSON gives back as another type."""
    text = f"is {_kind(value)}, which JSON gives back as {back.__name__}: {_NAME_IT}"
    return Unfit(text, path, _kind(value))


def _first(found: Iterable[Unfit | None]) -> Unfit | None:
    return next((one for one in found if one is not None), None)


def _is_same_moment(given: object, back: object) -> bool:
    """True if two datetimes are the same; `==` is always false in an hour that happens twice."""
    return (
        isinstance(given, datetime)
        and isinstance(back, datetime)
        and given.replace(tzinfo=None) == back.replace(tzinfo=None)
        and given.utcoffset() == back.utcoffset()
    )


def field_names(value: Any) -> list[str]:
    """The fields of a dataclass, an attrs class, a struct or a model of pydantic."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if is_model(type(value)):
        return [*type(value).model_fields, *(value.model_extra or ())]
    attrs = getattr(type(value), "__attrs_attrs__", ())
    return list(getattr(type(value), "__dataclass_fields__", ())) or [one.name for one in attrs]


def _kind(value: object) -> str:
    """A value's type, and the value.

    >>> _kind(12), _kind(None)
    ('int (12)', 'None')
    """
    return "None" if value is None else f"{type(value).__name__} ({shown(value)})"


def _lowered(text: str) -> str:
    """A sentence as the second half of another; a name at its beginning keeps its case."""
    return text[0].lower() + text[1:] if re.match("[A-Z][a-z]* ", text) else text


def _endless(number: float, path: str) -> Unfit:
    return Unfit(f"is {number}, which JSON cannot hold", path)


def _too_deep() -> Unfit:
    return Unfit("is nested too deep, or holds itself")
