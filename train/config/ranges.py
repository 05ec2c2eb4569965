"""What a config refuses, and the ranges of its numbers, written beside the fields.

`Annotated[int, Range(1, 2**31)]` is read by `check_ranges` alone: to everybody else,
the command line included, the field is an int.
"""

import dataclasses
import math
import typing
from typing import Any


class ConfigError(ValueError):
    """A run that cannot be what its flags say; the message is for the user."""


def check(condition: bool, message: str) -> None:
    if not condition:
        raise ConfigError(message)


@dataclasses.dataclass(frozen=True)
class Range:
    """Numbers from `low` up to but without `high`; NaN is in no range.

    Attributes:
        low: the smallest.
        high: above all of them.
        closed: whether `low` itself is one of them.
    """

    low: float
    high: float = math.inf
    closed: bool = True

    def __contains__(self, value: float) -> bool:
        above = self.low <= value if self.closed else self.low < value
        return above and value < self.high

    def __str__(self) -> str:
        low = f"{'at least' if self.closed else 'above'} {self.low:g}"
        return low if self.high == math.inf else f"{low} and below {self.high:,}"


NOT_NEGATIVE = Range(0)
POSITIVE = Range(0, closed=False)
AT_LEAST_1 = Range(1)
SIZE = Range(1, 2**31)  # of an array's axis, or a count in int32
FRACTION = Range(0, 1)


def check_range(flag: str, value: float | None, allowed: Range) -> None:
    """Raises ConfigError where a value is neither None nor in its range."""
    finite = isinstance(value, float) and allowed.high == math.inf
    check(
        value is None or value in allowed,
        f"{flag} is {value}: it must be {allowed}{' and finite' if finite else ''}.",
    )


def check_ranges(config: Any, prefix: str = "--") -> None:
    """Checks every number of a dataclass and of those in its fields.

    Raises:
        ConfigError: names the first flag that is out of its range.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value: Any = getattr(config, field.name)
        flag = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{flag}.")
            continue
        for allowed in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(allowed, Range):
                check_range(flag, value, allowed)
