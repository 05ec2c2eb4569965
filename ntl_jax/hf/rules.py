"""What a row of a weight table says: one stored tensor, one parameter."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Literal

import numpy as np

NewTokens = Literal["refuse", "mean"]

Tree = dict  # nested dicts with arrays at the leaves


@dataclasses.dataclass(frozen=True)
class Rule:
    """One parameter and the checkpoint tensors that it is made of.

    Attributes:
        path: the parameter's path, joined by "/".
        key: the tensor's name; `{}` stands for the layer's number.
        layers: how many layers are stacked in the parameter; None for no stack.
        transpose: whether the file keeps [out, in] where the parameter is [in, out].
        shape: one layer's shape in the file, where the parameter has other axes for
            the same numbers in the same order.
        rows: of a tensor with a row a token, how many tokens there are. The parameter
            may have more rows; they are padding, zero when read and not written.
    """

    path: str
    key: str
    layers: int | None = None
    transpose: bool = False
    shape: tuple[int, ...] | None = None
    rows: int | None = None

    def __post_init__(self):
        if self.transpose and self.shape is not None:
            # Such a view of the parameter would be a copy, and stay unread.
            raise ValueError(f"{self.path} has both transpose and shape; give one")

    def names(self) -> list[str]:
        """Names of the tensors, in the order in which they are stacked."""
        if self.layers is None:
            return [self.key]
        return [self.key.format(layer) for layer in range(self.layers)]

    def file_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the rule's tensors, for a parameter of this shape."""
        own = shape if self.layers is None else shape[1:]
        own = own[::-1] if self.transpose else own
        if self.shape is not None and math.prod(self.shape) == math.prod(own):
            own = self.shape
        return own if self.rows is None else (self.rows, *own[1:])

    def as_in_file(self, part: np.ndarray) -> np.ndarray:
        """One layer of the parameter seen as the file has it; a view, if contiguous."""
        part = part.T if self.transpose else part
        part = part if self.shape is None else part.reshape(self.shape)
        return part if self.rows is None else part[: self.rows]


@dataclasses.dataclass(frozen=True)
class Table:
    """All rules of one model, with what a checkpoint may hold besides.

    Attributes:
        rules: one a parameter.
        duplicates: tensor names that may repeat another tensor: {copy: original}.
        ignored: regular expressions, matched in full, of tensors without a use.
        prefix: what keys begin with when a file has the model with its head; files
            of the bare model leave it out.
    """

    rules: tuple[Rule, ...]
    duplicates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    prefix: str = ""

    def as_named(self, names: list[str]) -> "Table":
        """The table for a file with these names: without the prefix if they lack it."""
        if not self.prefix or any(name.startswith(self.prefix) for name in names):
            return self
        rules = (
            dataclasses.replace(rule, key=rule.key.removeprefix(self.prefix))
            for rule in self.rules
        )
        copies = {
            copy.removeprefix(self.prefix): original.removeprefix(self.prefix)
            for copy, original in self.duplicates.items()
        }
        return dataclasses.replace(self, rules=tuple(rules), duplicates=copies)


class CheckpointError(ValueError):
    """A checkpoint and a model disagree; the message lists every disagreement."""
