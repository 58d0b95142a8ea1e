"""PromQL as far as the alert rules need it, over samples of a play: its own small evaluator.

```
 expression ──► tokens ──► a tree of functions ──► samples of one time: labels -> value
 rule: an expression that holds for a given time ──► fires
```

What it does not know is an error, so that no rule is passed over.

Source:
    Prometheus 3, `promql/functions.go`: `increase` is extrapolated to the whole range.
"""

from __future__ import annotations

import operator
import re
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Evaluated = Callable[["Samples", float], "Found"]

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
"""Labels -> the value."""

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)(?![\w.])|(?P<span>\[\d+[smh]\])|(?P<text>\"[^\"]*\")"
    r"|(?P<word>[A-Za-z_]\w*)|(?P<sign>>=|<=|==|!=|[-+*/<>(){},=]))"
)
_COMPARISONS = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq,
}  # fmt: skip
_SUMS = {"+": operator.add, "-": operator.sub}
_PRODUCTS = {"*": operator.mul, "/": operator.truediv}
_FOLDS: dict[str, Callable[[Iterable[float]], float]] = {"sum": sum, "max": max, "min": min}
_UNITS = {"s": 1, "m": 60, "h": 3_600}


class Samples:
    """Scrapes of one target, at steps of the same length.

    Args:
        step_s: Seconds from one scrape to the next.

    Attributes:
        scrapes: Of each scrape, the name of a metric -> labels -> the value.
    """

    def __init__(self, step_s: int) -> None:
        self.step_s = step_s
        self.scrapes: list[dict[str, Vector]] = []

    def now(self, name: str, at_s: float) -> Vector:
        """What was scraped last; a series that is gone from the last scrape is stale."""
        place = int(at_s // self.step_s)
        if place >= len(self.scrapes):
            raise ValueError(f"nothing was scraped at {at_s} s")
        return self.scrapes[place].get(name, {})

    def over(
        self, name: str, at_s: float, span_s: float
    ) -> dict[Labels, list[tuple[float, float]]]:
        """Labels -> time and value of each sample in the span before, its begin exclusive."""
        found: dict[Labels, list[tuple[float, float]]] = {}
        first = max(int((at_s - span_s) // self.step_s) + 1, 0)
        for place in range(first, int(at_s // self.step_s) + 1):
            for labels, value in self.scrapes[place].get(name, {}).items():
                found.setdefault(labels, []).append((place * self.step_s, value))
        return found


class Span(NamedTuple):
    """A range of samples, as `name[5m]`."""

    name: str
    span_s: float
    match: Labels


Found = float | Vector


def increase(points: list[tuple[float, float]], from_s: float, until_s: float) -> float | None:
    """How much a counter grew in a range, extrapolated to its ends; None with one sample."""
    if len(points) < 2:
        return None
    grown = points[-1][1] - points[0][1]
    grown += sum(before for (_, before), (_, after) in pairwise(points) if after < before)
    to_begin, to_end = points[0][0] - from_s, until_s - points[-1][0]
    sampled_s = points[-1][0] - points[0][0]
    mean_s = sampled_s / (len(points) - 1)
    threshold_s = mean_s * 1.1
    if to_begin >= threshold_s:
        to_begin = mean_s / 2
    if grown > 0 and points[0][1] >= 0:
        # A counter does not begin below 0.
        to_begin = min(to_begin, sampled_s * (points[0][1] / grown))
    if to_end >= threshold_s:
        to_end = mean_s / 2
    return grown * (sampled_s + to_begin + to_end) / sampled_s


class Expression:
    """An expression, parsed.

    Args:
        text: The expression.

    Raises:
        ValueError: If something of it is not known here.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        place = 0
        text = text.strip()
        while place < len(text):
            found = _TOKEN.match(text, place)
            if found is None:
                raise ValueError(f"not known: {text[place:]!r}")
            kind = str(found.lastgroup)
            self._tokens.append((kind, found[kind]))
            place = found.end()
        self._place = 0
        self._eval = self._joined()
        if self._place != len(self._tokens):
            raise ValueError(f"not known: {self._tokens[self._place :]}")

    def at(self, samples: Samples, at_s: float) -> Found:
        """Its value at a time, seconds since the first scrape."""
        return self._eval(samples, at_s)

    # The grammar, the weakest operator first ------------------------------------------------------

    def _peek(self) -> str:
        return self._tokens[self._place][1] if self._place < len(self._tokens) else ""

    def _take(self, wanted: str = "") -> str:
        found = self._peek()
        if not found or (wanted and found != wanted):
            raise ValueError(f"{wanted or 'more'!r} is missing before {found!r}")
        self._place += 1
        return found

    def _joined(self) -> Evaluated:
        left = self._compared()
        while self._peek() in {"and", "unless"}:
            left = _join(self._take() == "and", left, self._on(), self._compared())
        return left

    def _on(self) -> tuple[str, ...] | None:
        if self._peek() != "on":
            return None
        self._take()
        return self._names()

    def _names(self) -> tuple[str, ...]:
        self._take("(")
        names = [self._take()]
        while self._peek() == ",":
            self._take()
            names.append(self._take())
        self._take(")")
        return tuple(names)

    def _compared(self) -> Evaluated:
        left = self._added()
        while self._peek() in _COMPARISONS:
            left = _compare(_COMPARISONS[self._take()], left, self._added())
        return left

    def _added(self) -> Evaluated:
        left = self._multiplied()
        while self._peek() in _SUMS:
            left = _reckon(_SUMS[self._take()], left, self._multiplied())
        return left

    def _multiplied(self) -> Evaluated:
        left = self._unit()
        while self._peek() in _PRODUCTS:
            left = _reckon(_PRODUCTS[self._take()], left, self._unit())
        return left

    def _unit(self) -> Evaluated:
        kind, word = self._tokens[self._place] if self._peek() else ("", "")
        if word == "(":
            self._take()
            found = self._joined()
            self._take(")")
            return found
        self._take()
        if kind == "number":
            return lambda _samples, _at_s: float(word)
        if self._peek() in {"(", "by"}:
            return self._called(word)
        if kind != "word":
            raise ValueError(f"not known: {word!r}")
        match = self._match()
        return lambda samples, at_s: {
            labels: value for labels, value in samples.now(word, at_s).items() if match <= labels
        }

    def _called(self, word: str) -> Evaluated:
        """What a function returns of what follows its name."""
        names: tuple[str, ...] = ()
        if word in _FOLDS:
            self._take("by")
            names = self._names()
        self._take("(")
        if word == "time":
            found: Evaluated = _time
        elif word in {"increase", "min_over_time"}:
            found = _over(word, self._range())
        elif word in _FOLDS:
            found = _fold(_FOLDS[word], names, self._joined())
        elif word == "abs":
            found = _absolute(self._joined())
        else:
            raise ValueError(f"not known: {word!r}")
        self._take(")")
        return found

    def _match(self) -> Labels:
        pairs: set[tuple[str, str]] = set()
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                name = self._take()
                self._take("=")
                pairs.add((name, self._take().strip('"')))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        return frozenset(pairs)

    def _range(self) -> Span:
        name, match = self._take(), self._match()
        text = self._take()
        if not text.startswith("["):
            raise ValueError(f"{name} has no range")
        return Span(name, int(text[1:-2]) * _UNITS[text[-2]], match)


def _each(work: Callable[[float], float], given: Found) -> Found:
    if isinstance(given, float):
        return work(given)
    return {labels: work(value) for labels, value in given.items()}


def _time(_samples: Samples, at_s: float) -> Found:
    return float(at_s)


def _absolute(given: Evaluated) -> Evaluated:
    return lambda samples, at_s: _each(abs, given(samples, at_s))


def _over(function: str, span: Span) -> Evaluated:
    def found(samples: Samples, at_s: float) -> Vector:
        made: Vector = {}
        for labels, points in samples.over(span.name, at_s, span.span_s).items():
            if span.match <= labels:
                if function == "increase":
                    value = increase(points, at_s - span.span_s, at_s)
                else:
                    value = min(value for _, value in points)
                if value is not None:
                    made[labels] = value
        return made

    return found


def _fold(
    fold: Callable[[Iterable[float]], float],
    names: tuple[str, ...],
    given: Evaluated,
) -> Evaluated:
    def found(samples: Samples, at_s: float) -> Vector:
        of: dict[Labels, list[float]] = {}
        for labels, value in _vector(given(samples, at_s)).items():
            of.setdefault(_only(labels, names), []).append(value)
        return {labels: fold(values) for labels, values in of.items()}

    return found


def _only(labels: Labels, names: tuple[str, ...] | None) -> Labels:
    return labels if names is None else frozenset(one for one in labels if one[0] in names)


def _vector(given: Found) -> Vector:
    if isinstance(given, float):
        raise TypeError("a number, where samples are needed")
    return given


def _reckon(
    work: Callable[[float, float], float],
    left: Evaluated,
    right: Evaluated,
) -> Evaluated:
    def found(samples: Samples, at_s: float) -> Found:
        one, other = left(samples, at_s), right(samples, at_s)
        if isinstance(one, float) and isinstance(other, float):
            return work(one, other)
        if isinstance(one, float):
            return _each(lambda value: work(one, value), other)
        if isinstance(other, float):
            return _each(lambda value: _quotient(work, value, other), one)
        return {
            labels: _quotient(work, value, other[labels])
            for labels, value in one.items()
            if labels in other
        }

    return found


def _quotient(work: Callable[[float, float], float], one: float, other: float) -> float:
    """A quotient as in IEEE 754: 0 / 0 is no number, and every comparison with it is false."""
    if work is operator.truediv and other == 0:
        return float("nan") if one == 0 else float("inf")
    return work(one, other)


def _compare(
    is_true: Callable[[float, float], bool],
    left: Evaluated,
    right: Evaluated,
) -> Evaluated:
    def found(samples: Samples, at_s: float) -> Vector:
        one, other = _vector(left(samples, at_s)), right(samples, at_s)
        return {
            labels: value
            for labels, value in one.items()
            if (isinstance(other, float) or labels in other)
            and is_true(value, other if isinstance(other, float) else other[labels])
        }

    return found


def _join(
    is_and: bool,
    left: Evaluated,
    names: tuple[str, ...] | None,
    right: Evaluated,
) -> Evaluated:
    def found(samples: Samples, at_s: float) -> Vector:
        there = {_only(labels, names) for labels in _vector(right(samples, at_s))}
        return {
            labels: value
            for labels, value in _vector(left(samples, at_s)).items()
            if (_only(labels, names) in there) is is_and
        }

    return found


def seconds_of(span: str) -> int:
    """`for` of a rule in seconds.

    >>> seconds_of("5m"), seconds_of("")
    (300, 0)
    """
    return int(span[:-1]) * _UNITS[span[-1]] if span else 0


def firing(rules: Iterable[Mapping[str, str]], samples: Samples) -> list[set[str]]:
    """The alerts that fire at each scrape.

    Args:
        rules: `alert`, `expr` and maybe `for` of each.
        samples: The scrapes; the rules are evaluated at each.
    """
    times = [place * samples.step_s for place in range(len(samples.scrapes))]
    fires: list[set[str]] = [set() for _ in times]
    for rule in rules:
        expression, for_s = Expression(rule["expr"]), seconds_of(rule.get("for", ""))
        since: dict[Labels, int] = {}
        for place, at_s in enumerate(times):
            true = _vector(expression.at(samples, at_s))
            since = {labels: since.get(labels, at_s) for labels in true}
            if any(at_s - from_s >= for_s for from_s in since.values()):
                fires[place].add(rule["alert"])
    return fires
