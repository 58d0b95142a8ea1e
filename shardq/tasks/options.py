"""The options of a task and of each of its puts, and the policy that results.

```
 App(..) ──► @app.task(..) ──► task.using(..)     each adds to the one before, and replaces
     └─ how it is put: queue, delay, key ..       `ChosenOptions`, used up by the put
     └─ how it runs: attempts, back-off, limit .. `Policy`; what a put has changed of it travels
                                                  in the header `task-options`
```
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypedDict, cast

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from shardq.errors import BadSetting, UsageError, shown
from shardq.lifecycle.batch import PutOptions
from shardq.lifecycle.keyedputs import CHOICES
from shardq.model import message, names
from shardq.model.limits import GroupOptions, TaskLimitOptions
from shardq.model.message import headers_json
from shardq.model.times import DELAY_MAX_MS, KEPT_MS_MAX, duration_ms, duration_text
from shardq.tasks.elsewhere import option_here

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardq.model.times import Due, Duration

ATTEMPTS = 5
ATTEMPTS_MAX = 10_000
BATCH_MAX = 1_000
TASK_HEADER, OPTIONS_HEADER = message.JOB_HEADERS
_BACKOFFS_MAX = 1_000
_FACTOR_MAX = 100

Errors: TypeAlias = "type[BaseException] | Sequence[type[BaseException]]"
BackoffLike: TypeAlias = (
    "Backoff | Duration | Sequence[Duration] | Callable[[int, BaseException], Duration]"
)
"""How long a failed job waits: an exponential `Backoff`, a constant, one duration after the other
(the last repeats), or a function of the attempt, from 1, and the error."""
_Backoff: TypeAlias = "Backoff | tuple[Duration, ...] | Callable[[int, BaseException], Duration]"
"""A back-off that was checked."""


class TaskOptions(TypedDict, total=False):
    """The options of `App.task` for all puts of a task, and of `App` for all of its tasks.

    `key` and `group` may name arguments in braces, which each put fills in: `key="welcome-{user}"`
    with `put("ada")` is `welcome-ada`.

    Attributes:
        queue: The queue that the job goes to.
        delay: How long from the put it is due.
        spread: How much later it may be due; `Queue.put` describes it.
        priority: 0 is first; below the queue's `bands`.
        group: Jobs of one group run one at a time, in order.
        key: A name that no other live job of the queue has; `Queue.put` describes it.
        on_conflict: If a job has the key already: keep, replace, reject or debounce.
        max_wait: For debounce: how long the first put is postponed at most.
        unique_for: How long the key is held after the job's end.
        headers: Names and texts that travel with the job, beside its task's own.
        attempts: How often it may run, 1 to 10,000; 5 unless given.
        backoff: How long it waits after a failure.
        retry_on: Errors after which it runs again; any other buries it.
        bury_on: Errors that bury it at once.
        timeout: How long one run may take.
        expires: How long after its first due the job may begin; later it ends as expired.
        keep: How long its result and progress are kept; without it they are not kept.
    """

    queue: str
    delay: Duration | None
    spread: Duration | None
    priority: int
    group: str | None
    key: str | None
    on_conflict: Literal["keep", "replace", "reject", "debounce"]
    max_wait: Duration | None
    unique_for: Duration | None
    headers: Mapping[str, str]
    attempts: int
    backoff: BackoffLike | None
    retry_on: Errors | None
    bury_on: Errors | None
    timeout: Duration | None
    expires: Duration | None
    keep: Duration | None


class DeclaredOptions(TaskOptions, total=False):
    """The options of `App.task`: those of a task, and its limits over all workers.

    A worker stores the limits in the settings of the task's queue at its start, unless limits of
    the task are there: these hold, with one warning if they differ.

    Attributes:
        rate: Jobs that may begin in a time, `10/s` or `1,000/h`; several in a list.
        burst: How many may begin at once after a rest; 1 unless given.
        running: Jobs that may run at once.
    """

    rate: str | list[str]
    burst: int
    running: int


class CallOptions(TaskOptions, total=False):
    """The options of `using`, for the puts that follow: those of a task, and two more.

    None removes the option of the task. Braces in `key` and `group` stay as they are.

    Attributes:
        due: Instead of `delay`: an aware datetime, or ISO 8601 text with a zone.
        id: The job's id; made up unless given.
    """

    due: Due | None
    id: str


@dataclass(frozen=True, slots=True)
class Backoff:
    """A delay that grows with each failed attempt, partly at random.

    Attributes:
        first: The delay after the first attempt.
        factor: The growth with each further attempt, 1 to 100.
        longest: The longest delay.
        jitter: The random share of the delay, 0 to 1: 0.2 gives 80 to 100 % of it, so that jobs
            that failed together do not retry together.

    >>> Backoff("1s", factor=2, longest="1m", jitter=0).delay_ms(4)
    8000
    """

    first: Duration = "1s"
    factor: float = 2.0
    longest: Duration = "1h"
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if duration_ms(self.first, name="first") > duration_ms(self.longest, name="longest"):
            raise BadSetting(
                f"first {shown(self.first)} of a Backoff is longer than its longest "
                f"{shown(self.longest)}; give both."
            )
        if type(self.factor) not in (int, float) or not 1 <= self.factor <= _FACTOR_MAX:
            raise BadSetting(
                f"factor must be a number from 1 to {_FACTOR_MAX}, not {shown(self.factor)}."
            )
        if type(self.jitter) not in (int, float) or not 0 <= self.jitter <= 1:
            raise BadSetting(f"jitter must be a number from 0 to 1, not {shown(self.jitter)}.")

    def delay_ms(self, attempt: int) -> int:
        """The delay after an attempt, from 1, milliseconds."""
        longest_ms = duration_ms(self.longest)
        try:
            grown = duration_ms(self.first) * self.factor ** (attempt - 1)
        except OverflowError:
            grown = longest_ms
        return round(min(grown, longest_ms) * (1 - self.jitter * random.random()))


@dataclass(frozen=True, slots=True)
class Policy:
    """How a job runs, and its fate after a failure.

    Attributes:
        attempts: How often it may run.
        backoff: A `Backoff`, delays one after the other, or a function; None: the usual `Backoff`.
        retry_on: The names of retried errors, as `error_names` returns them; None: all.
        bury_on: The names of errors that are not retried.
        timeout_ms: How long a run may take; None: no limit.
        expires_ms: How long after its first due a job may begin; None: without end.
        keep_ms: How long its result is kept; None: not at all.
    """

    attempts: int = ATTEMPTS
    backoff: _Backoff | None = None
    retry_on: tuple[str, ...] | None = None
    bury_on: tuple[str, ...] = ()
    timeout_ms: int | None = None
    expires_ms: int | None = None
    keep_ms: int | None = None

    def is_hopeless(self, error: BaseException) -> bool:
        """True if a run that failed with this error is not retried."""
        if self.retry_on is None and not self.bury_on:
            return False
        # The nearest class of the error that an option names decides.
        for name in error_names(type(error)):
            if name in self.bury_on:
                return True
            if self.retry_on is not None and name in self.retry_on:
                return False
        return self.retry_on is not None

    def backoff_ms(self, attempt: int, error: BaseException) -> int:
        """How long a job waits after an attempt, from 1, that failed with this error.

        Raises:
            BaseException: Any error of the user's function.
            UsageError: If the function returns no duration.
        """
        backoff = self.backoff
        if backoff is None:
            return _USUAL.delay_ms(attempt)
        if isinstance(backoff, Backoff):
            return backoff.delay_ms(attempt)
        if callable(backoff):
            return duration_ms(backoff(attempt, error), name="what backoff returns")
        return duration_ms(backoff[min(attempt, len(backoff)) - 1], name="backoff")

    def changes_json(self, other: Policy) -> str:
        """The changes that another policy makes, as the header holds them; empty if there are none.

        Raises:
            UsageError: If its back-off is a function, which cannot travel.
        """
        named = {field.name: getattr(other, field.name) for field in fields(self)}
        changed = {name: one for name, one in named.items() if one != getattr(self, name)}
        if "backoff" in changed:
            changed["backoff"] = _backoff_json(other.backoff)
        return msgspec.json.encode(changed).decode() if changed else ""

    def of_job(self, headers: Mapping[str, str]) -> Policy:
        """This policy of a task, with the changes of a put.

        Raises:
            UsageError: If the header cannot be read.
        """
        text = headers.get(OPTIONS_HEADER)
        return self if text is None else self.changed(text)

    def changed(self, text: str) -> Policy:
        """This policy with the changes of a header; unknown fields of newer releases are ignored.

        Raises:
            UsageError: If the header cannot be read.
        """
        try:
            given = asdict(msgspec.json.decode(text, type=_Changes))
            changed = {name: value for name, value in given.items() if value is not UNSET}
            if "backoff" in changed:
                changed["backoff"] = _read_backoff(changed["backoff"])
            return replace(self, **changed)
        except (ValueError, TypeError, msgspec.DecodeError) as error:
            told = str(error).removesuffix(".")
            raise UsageError(
                f"header {OPTIONS_HEADER!r} cannot be read, {shown(text)}: {told}."
            ) from error


_USUAL = Backoff()


def error_names(kind: type[BaseException]) -> list[str]:
    """The names of an error's class and its bases, itself first, as jobs carry them."""
    return [f"{one.__module__}.{one.__qualname__}" for one in kind.__mro__]


def backoff_text(backoff: _Backoff) -> str:
    """A back-off as text for people.

    >>> backoff_text(Backoff("1s", factor=3, longest="10m")), backoff_text(("1s", "1m"))
    ('1s x3 to 10m', '1s 1m')
    """
    if isinstance(backoff, Backoff):
        first, longest = (
            duration_text(duration_ms(one)) for one in (backoff.first, backoff.longest)
        )
        return f"{first} x{backoff.factor:g} to {longest}"
    if callable(backoff):
        return f"by {getattr(backoff, '__name__', 'a function')}"
    return " ".join(duration_text(duration_ms(one)) for one in backoff)


def _backoff_json(backoff: _Backoff | None) -> Any:
    if isinstance(backoff, Backoff):
        return {
            "first": f"{duration_ms(backoff.first)}ms",
            "factor": backoff.factor,
            "longest": f"{duration_ms(backoff.longest)}ms",
            "jitter": backoff.jitter,
        }
    if backoff is None:
        return None
    if callable(backoff):
        raise BadSetting(
            "a back-off that is a function belongs to the task, @app.task(backoff=..), and cannot "
            "travel with a job; give using() a Backoff, a duration or a list of them."
        )
    return [f"{duration_ms(one)}ms" for one in backoff]


def _read_backoff(value: Any) -> _Backoff | None:
    """A back-off from a header, which any program may have written.

    Raises:
        UsageError: If it is no back-off.
    """
    if isinstance(value, dict):
        return Backoff(
            **{one.name: value[one.name] for one in fields(Backoff) if one.name in value}
        )
    return _checked_backoff(value, OPTIONS_HEADER)


_Span: TypeAlias = Annotated[int, Meta(ge=1, le=DELAY_MAX_MS)] | UnsetType | None


class _Changes(msgspec.Struct):
    """The fields of a policy as a header holds them."""

    attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | UnsetType = UNSET
    backoff: str | tuple[str, ...] | dict[str, Any] | UnsetType | None = UNSET
    retry_on: tuple[str, ...] | UnsetType | None = UNSET
    bury_on: tuple[str, ...] | UnsetType = UNSET
    timeout_ms: _Span = UNSET
    expires_ms: _Span = UNSET
    keep_ms: Annotated[int, Meta(ge=1, le=KEPT_MS_MAX)] | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class ChosenOptions:
    """The checked options of a task or a put.

    Attributes:
        queue: The queue's name.
        putting: The chosen arguments of `Queue.put`, without body and headers.
        headers: The user's headers.
        policy: How it runs.
    """

    queue: str
    putting: Mapping[str, Any]
    headers: Mapping[str, str]
    policy: Policy

    def with_(
        self, given: Mapping[str, Any], whose: str, *, is_call: bool, others: Iterable[str] = ()
    ) -> ChosenOptions:
        """These options, with some replaced.

        Args:
            given: The new options, as `CallOptions` or `TaskOptions` name them.
            whose: The task or the app, for errors.
            is_call: True if they are of a put.
            others: Options that the caller reads itself, for errors.

        Raises:
            UsageError: If one is unknown or cannot be used, or two contradict each other.
        """
        known = _CALL_NAMES if is_call else _TASK_NAMES
        for name in given:
            if name not in known:
                instead = option_here(name)
                hint = f"{instead}."
                if instead is None:
                    hint = _hint(name, (*known, *others), given.get("queue", self.queue))
                raise BadSetting(f"{whose}: unknown option {name!r}; {hint}")
        putting = dict(self.putting)
        if "due" in given:
            putting.pop("delay", None)
        if "delay" in given:
            putting.pop("due", None)
        if given.get("due") is not None and given.get("delay") is not None:
            raise BadSetting(f"{whose}: due and delay contradict each other; give one of them.")
        putting |= {name: given[name] for name in PUT_NAMES if name in given}
        made = ChosenOptions(
            names.queue_name(given.get("queue", self.queue)),
            {name: value for name, value in putting.items() if value is not None},
            {**self.headers, **_checked_headers(given.get("headers") or {}, whose)},
            _policy(self.policy, given, whose),
        )
        _check_together(made, given, whose)
        return made


PUT_NAMES = tuple(name for name in PutOptions.__annotations__ if name not in ("headers", "expires"))
"""The options of a put that a job leaves to its message."""
_CALL_NAMES = tuple(CallOptions.__annotations__)
_TASK_NAMES = tuple(TaskOptions.__annotations__)
_OF_GROUPS = GroupOptions.__annotations__.keys() - TaskLimitOptions.__annotations__.keys()


def _hint(name: str, known: Sequence[str], queue: str) -> str:
    """The end of an error about an unknown option of a task or a put."""
    if name in _OF_GROUPS:
        return (
            f"it is a limit of groups: set it with app.queue({queue!r}).limit('*', {name}=..), "
            f"where '*' is each group of the queue."
        )
    return names.hint(name, known, f"there are {', '.join(known)}.")


def _checked_headers(given: Mapping[str, str], whose: str) -> Mapping[str, str]:
    headers_json(given)
    for name in message.JOB_HEADERS:
        if name in given:
            raise BadSetting(f"{whose}: header {name!r} is the app's own; choose another name.")
    return given


def _policy(policy: Policy, given: Mapping[str, Any], whose: str) -> Policy:
    changed: dict[str, Any] = {}
    if (attempts := given.get("attempts")) is not None:
        if type(attempts) is not int or not 1 <= attempts <= ATTEMPTS_MAX:
            raise BadSetting(
                f"{whose}: attempts must be 1 to {ATTEMPTS_MAX:,}, not {shown(attempts)}."
            )
        changed["attempts"] = attempts
    if "backoff" in given:
        changed["backoff"] = _checked_backoff(given["backoff"], whose)
    for name in ("retry_on", "bury_on"):
        if name in given:
            changed[name] = _error_names_of(given[name], name, whose)
    for name in ("timeout", "expires", "keep"):
        if name in given:
            value = given[name]
            changed[f"{name}_ms"] = None if value is None else _span_ms(value, name, whose)
    return replace(policy, **changed)


def _span_ms(value: Duration, name: str, whose: str) -> int:
    span_ms = duration_ms(value, name=f"{whose}: {name}")
    if name == "keep" and span_ms > KEPT_MS_MAX:
        raise BadSetting(f"{whose}: keep must be at most 5 years, not {shown(value)}.")
    if not 0 < span_ms <= DELAY_MAX_MS:
        raise BadSetting(f"{whose}: {name} must be longer than 0; leave it out for none.")
    return span_ms


def _checked_backoff(backoff: Any, whose: str) -> _Backoff | None:
    if backoff is None or isinstance(backoff, Backoff) or callable(backoff):
        return cast("_Backoff | None", backoff)
    several = tuple(backoff) if isinstance(backoff, (list, tuple)) else (backoff,)
    if not 1 <= len(several) <= _BACKOFFS_MAX:
        raise BadSetting(
            f"{whose}: backoff must have 1 to {_BACKOFFS_MAX:,} durations, not {len(several):,}."
        )
    for one in several:
        duration_ms(one, name=f"{whose}: backoff")
    return several


def _error_names_of(given: Any, name: str, whose: str) -> tuple[str, ...] | None:
    if given is None:
        return None if name == "retry_on" else ()
    # Check for a class and a string first: an enum class and a string are iterable.
    is_one = isinstance(given, (type, str)) or not isinstance(given, Iterable)
    kinds = [given] if is_one else list(given)
    if name == "retry_on" and not kinds:
        raise BadSetting(f"{whose}: retry_on names no error; give attempts=1 to retry none.")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise BadSetting(f"{whose}: {name} must name classes of errors, not {shown(kind)}.")
    return tuple(error_names(kind)[0] for kind in kinds)


def _check_together(made: ChosenOptions, given: Mapping[str, Any], whose: str) -> None:
    """Refuse options that contradict each other."""
    policy, putting = made.policy, made.putting
    if both := set(policy.retry_on or ()) & set(policy.bury_on):
        raise BadSetting(
            f"{whose}: {', '.join(sorted(both))} is both in retry_on and in bury_on; leave it in "
            f"one of them."
        )
    if policy.attempts == 1:
        for name in ("backoff", "retry_on"):
            if given.get(name) is not None:
                raise BadSetting(
                    f"{whose}: {name} has no use with attempts=1, which retries nothing; leave one "
                    f"of them out."
                )
    if putting.get("on_conflict", "keep") not in CHOICES:
        raise BadSetting(
            f"{whose}: on_conflict must be one of {', '.join(CHOICES)}, not "
            f"{shown(putting['on_conflict'])}."
        )
    if "key" not in putting:
        for name in ("on_conflict", "max_wait", "unique_for"):
            if given.get(name) is not None:
                raise BadSetting(f"{whose}: {name} has no use without a key; give key= as well.")
    if "max_wait" in putting and putting.get("on_conflict") != "debounce":
        raise BadSetting(f"{whose}: max_wait has no use but with on_conflict='debounce'.")
