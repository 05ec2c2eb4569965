"""ntloss 0.3.2's classes on JAX arrays, call for call.

To port a PyTorch script, change the import:

>>> import jax, jax.numpy as jnp
>>> from ntl_jax.compat import NTLoss  # was: from ntloss import NTLoss
>>> class Tokenizer:
...     def __len__(self):
...         return 12
...     def get_vocab(self):
...         return {"<pad>": 0, "=": 1} | {str(d): d + 2 for d in range(10)}
>>> loss_fn = NTLoss(Tokenizer(), reweigh=False)
>>> logits, labels = jnp.zeros((1, 3, 12)), jnp.array([[1, 6, -100]])
>>> print(loss_fn(logits, labels).round(3))  # "=", "4" and an ignored position
2.5
>>> gradient = jax.jit(jax.grad(loss_fn))(logits, labels)

Arguments, their order and their defaults are those of ntloss; so ``reweigh`` is True
here, where the functions of `ntl_jax.losses`, as the paper, do not reweigh. Values and
gradients are the same in float32. What differs, on purpose:

* The tokenizer is never changed. A digit that it lacks is an error; ntloss adds it.
* The result is float32 whatever the logits are; bfloat16 logits are upcast first.
* A batch without a number, or with no weight on one, gives a 0 that can be
  differentiated; its gradient is 0.
* Integer labels of any width are accepted; arrays are JAX's or NumPy's.
* A ``loss_function`` is called with (prediction, target) alone, not ``reduction=``; one
  that takes a mean of its own is an error.
* The columns of the logits are checked at every call. Labels outside the vocabulary and
  negative weights are found wherever the values are known, not under ``jit``.
* A squash factor that is not above 1 is a ValueError, as are a vocabulary without
  numbers and a number token beyond 1e18.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from ntl_jax.losses.checks import check_floating, check_integers, check_is_array
from ntl_jax.losses.distances import squashed
from ntl_jax.losses.dot_product import Penalty, ntl_dot_product
from ntl_jax.losses.dot_product import squared as squared_penalty
from ntl_jax.losses.number_level import number_level_loss
from ntl_jax.losses.predict_numbers import predict_numbers
from ntl_jax.losses.wasserstein import ntl_was
from ntl_jax.numbers.vocab import NumberVocab, vocab_of

Array = jax.Array | np.ndarray
_REDUCTIONS = {"mean": "mean", "sum": "sum", "none": None}


class Tokenizer(Protocol):
    """What is asked of a tokenizer; Hugging Face's have both methods."""

    def __len__(self) -> int: ...
    def get_vocab(self) -> Mapping[str, int]: ...


class AbstractNTLoss(ABC):
    """What the losses share: which tokens are numbers, and what a call may be given.

    Attributes:
        numbers: the `NumberVocab` that the functions of `ntl_jax.losses` take.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
    ):
        self.tokenizer = tokenizer
        self.vocab_size = len(tokenizer) if vocab_size is None else vocab_size
        self.digit_level = digit_level
        self.reweigh = reweigh
        self.numbers = _read_numbers(tokenizer, self.vocab_size, digit_level)

    @property
    def number_token_ids(self) -> np.ndarray:
        """i32[K], the number tokens, ascending."""
        return self.numbers.token_ids

    @property
    def number_values_dense(self) -> np.ndarray:
        """f32[K], what the number tokens are worth."""
        return self.numbers.values

    @property
    def is_number_token(self) -> np.ndarray:
        """bool[V], True at the number tokens."""
        return self.numbers.row >= 0

    def __call__(
        self,
        logits: Array,
        labels: Array,
        loss_weights: Array | None = None,
        reduction: str = "mean",
        ignore_index: int = -100,
    ) -> jax.Array:
        """The loss of a batch.

        Args:
            logits: [B, T, V] of any floating dtype.
            labels: token ids [B, T].
            loss_weights: non-negative weights [B, T]; 1 where None.
            reduction: "mean" over the weight of the numbers, "sum", or "none" for the
                weighted losses [B, T], 0 off the numbers.
            ignore_index: the label that counts nothing.

        Returns:
            float32, a scalar or [B, T].

        Raises:
            TypeError: for logits that are not floating, or labels that are no integers.
            ValueError: for shapes that do not go together or hold nothing, logits of
                other than ``vocab_size`` columns, negative weights (where they are
                known) or an unknown reduction.
            IndexError: for a label outside the vocabulary (where labels are known).
        """
        logits = self._checked_logits(logits)
        labels = self._checked_labels(labels, logits.shape[:-1], ignore_index)
        weights = _checked_weights(loss_weights, labels.shape)
        if reduction not in _REDUCTIONS:
            raise ValueError(
                f"reduction must be 'mean', 'sum' or 'none', not {reduction!r}."
            )
        return self._loss(
            logits,
            labels,
            weights=weights,
            reduction=_REDUCTIONS[reduction],
            ignore_index=ignore_index,
        )

    forward = __call__

    @abstractmethod
    def _loss(self, logits: jax.Array, labels: jax.Array, **options) -> jax.Array:
        """The function of `ntl_jax.losses` behind the class."""

    def _checked_logits(self, logits: Array) -> jax.Array:
        check_floating("logits", logits)
        if logits.ndim != 3 or logits.size == 0:
            raise ValueError(
                f"logits must be [B, T, V] and not empty, not of shape {logits.shape}."
            )
        if logits.shape[-1] != self.vocab_size:
            raise ValueError(
                f"logits have {logits.shape[-1]} columns, but vocab_size is "
                f"{self.vocab_size}. Give vocab_size={logits.shape[-1]} to the "
                "constructor if these are the columns of your model."
            )
        return jnp.asarray(logits)

    def _checked_labels(
        self, labels: Array, shape: tuple[int, ...], ignore_index: int
    ) -> jax.Array:
        check_integers("labels", labels)
        if labels.shape != shape:
            raise ValueError(
                f"logits of shape {(*shape, self.vocab_size)} ask for labels of shape "
                f"{shape}, not {labels.shape}."
            )
        if _is_known(labels):
            ids = np.asarray(labels)
            outside = (ids != ignore_index) & ((ids < 0) | (ids >= self.vocab_size))
            if outside.any():
                raise IndexError(
                    f"label {ids[outside][0]} is outside the vocabulary of "
                    f"{self.vocab_size} tokens, and is not ignore_index={ignore_index}."
                )
        return jnp.asarray(labels).astype(jnp.int32)


class NTLoss(AbstractNTLoss):
    """NTL-WAS: the expected distance from the predicted number to the true one.

    Args:
        tokenizer: anything with ``get_vocab`` and a length; never changed.
        vocab_size: the columns of the logits; ``len(tokenizer)`` where None.
        digit_level: whether only the ten bare digits are numbers; otherwise every token
            that Python's ``float`` reads as a finite number.
        reweigh: whether to charge for mass that is not on numbers.
        squash_factor: how many times worse the farthest number is than the nearest
            wrong one; None for plain distances (9 for digits).

    Raises:
        ValueError: for a digit that is missing, a vocabulary without numbers, or a
            squash factor that is not above 1.

    Source: ntloss 0.3.2, ``NTLoss``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        squash_factor: float | None = None,
    ):
        super().__init__(tokenizer, vocab_size, digit_level, reweigh)
        if isinstance(squash_factor, int | float) and not squash_factor > 1:
            raise ValueError(
                f"squash_factor must be above 1, not {squash_factor}. For a factor of "
                "1 give ntl_was the costs of ntl_jax.losses.distances.squashed."
            )
        self.squash_factor = squash_factor
        self._distance = None
        if squash_factor is not None:
            self._distance = squashed(self.numbers, squash_factor)

    def _loss(self, logits: jax.Array, labels: jax.Array, **options) -> jax.Array:
        options |= {"reweigh": self.reweigh, "distance": self._distance}
        return ntl_was(logits, labels, self.numbers, **options)


class NTLossDotProduct(AbstractNTLoss):
    """NTL-Lp: a penalty on the difference of the expected number and the true one.

    Args:
        tokenizer: anything with ``get_vocab`` and a length; never changed.
        vocab_size, digit_level, reweigh: as in `NTLoss`.
        loss_function: an elementwise JAX function of (prediction, target): one of optax
            or of `ntl_jax.losses.dot_product`. The square of the difference by default.

    Raises:
        ValueError: for a digit that is missing or a vocabulary without numbers.

    Source: ntloss 0.3.2, ``NTLossDotProduct``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int | None = None,
        digit_level: bool = True,
        reweigh: bool = True,
        loss_function: Penalty = squared_penalty,
    ):
        super().__init__(tokenizer, vocab_size, digit_level, reweigh)
        self.loss_function = loss_function

    def predict_numbers(self, logits: Array) -> tuple[jax.Array, jax.Array]:
        """The expected number at every position, whatever its label.

        Args:
            logits: [B, T, V] of any floating dtype.

        Returns:
            (number, mass), both f32[B, T]: the mean over the softmax of the number
            logits, and the probability, in [0, 1], that the full softmax gives to
            number tokens.
        """
        return predict_numbers(self._checked_logits(logits), self.numbers)

    def _loss(self, logits: jax.Array, labels: jax.Array, **options) -> jax.Array:
        options |= {"reweigh": self.reweigh, "penalty": self.loss_function}
        return ntl_dot_product(logits, labels, self.numbers, **options)


class NumberLevelLoss(NTLossDotProduct):
    """The relative error of whole numbers: |X - Y| / (X + Y + eps), in [0, 1].

    Y is a run of digit labels read as one number, X the same from the expected digits.
    The loss stands at the first digit of the number, with its weight.

    Args:
        tokenizer: anything with ``get_vocab`` and a length; never changed.
        vocab_size: as in `NTLoss`.
        float_level: whether one "." between two digits leaves the number whole. Its
            decimals count as further digits: 12.34 is read as 1234.
        reweigh: whether to charge for mass that is not on numbers at the first digit.
        max_number_length: from which digit on, counted from the right, places are worth
            no more than the one before.

    Raises:
        ValueError: for a digit that is missing, or a "." that float_level needs.

    Source: ntloss 0.3.2, ``NumberLevelLoss``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int | None = None,
        float_level: bool = False,
        reweigh: bool = True,
        max_number_length: int = 20,
    ):
        super().__init__(tokenizer, vocab_size, digit_level=True, reweigh=reweigh)
        if float_level and not len(self.numbers.point_ids):
            raise ValueError(
                'float_level=True joins digits at ".", and the tokenizer has no such '
                "token: leave it out."
            )
        self.float_level = float_level
        self.max_number_length = max_number_length

    def _loss(self, logits: jax.Array, labels: jax.Array, **options) -> jax.Array:
        options |= {"mode": "ntloss", "float_level": self.float_level}
        options |= {"max_number_length": self.max_number_length}
        options |= {"reweigh": self.reweigh}
        return number_level_loss(logits, labels, self.numbers, **options)


def _read_numbers(
    tokenizer: Tokenizer, vocab_size: int, digit_level: bool
) -> NumberVocab:
    tokens = vocab_of(tokenizer)
    missing = [digit for digit in "0123456789" if digit not in tokens]
    if digit_level and missing:
        raise ValueError(
            f"the tokenizer has no token for {', '.join(missing)}, and is not changed "
            "here. Add the digits and resize the model's embedding, or give "
            "digit_level=False."
        )
    policy = "digits" if digit_level else "ntloss"
    return NumberVocab.from_mapping(tokens, vocab_size=vocab_size, policy=policy)


def _checked_weights(weights: Array | None, shape: tuple[int, ...]) -> jax.Array | None:
    if weights is None:
        return None
    check_is_array("loss_weights", weights)
    if weights.shape != shape:
        raise ValueError(
            f"loss_weights of shape {weights.shape} do not match labels of shape "
            f"{shape}."
        )
    if _is_known(weights) and np.any(np.asarray(weights) < 0):
        raise ValueError(
            f"loss_weights must not be negative; the least is {np.min(weights)}."
        )
    return jnp.asarray(weights).astype(jnp.float32)


def _is_known(array: Array) -> bool:
    """Whether the values can be looked at: not those of an argument of jit or vmap."""
    return not isinstance(array, Tracer)
