"""The range that a number of a config must lie in, written beside its field.

`Annotated[int, Range(1, 2**31)]` is read by `check_ranges` alone: to everybody else,
the command line included, the field is an int.
"""

import dataclasses
import math
import typing
from typing import Any

from train.config.mesh import check


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


def check_ranges(config: Any, prefix: str = "--") -> None:
    """Checks every number of a dataclass and of those in its fields; None is allowed.

    Raises:
        ConfigError: names the first flag that is out of its range.
    """
    hints = typing.get_type_hints(type(config), include_extras=True)
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        flag = prefix + field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            check_ranges(value, f"{flag}.")
        for allowed in getattr(hints[field.name], "__metadata__", ()):
            if isinstance(allowed, Range) and value is not None:
                finite = isinstance(value, float) and allowed.high == math.inf
                check(
                    value in allowed,
                    f"{flag} is {value}: it must be {allowed}"
                    f"{' and finite' if finite else ''}.",
                )
