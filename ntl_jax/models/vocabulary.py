"""Tables of tokens with rows that only pad them."""

import dataclasses
import logging
from typing import TYPE_CHECKING, Self

logger = logging.getLogger(__name__)


class PaddedVocabulary:
    """A model's config whose tables may have more rows than there are tokens.

    The rows that are added hold zeros. Logits of their columns are -1e30, losses mask
    them by `NumberVocab.vocab_size`, files are written without them.
    """

    if TYPE_CHECKING:  # fields of the configs
        vocab_size: int
        vocab_rows: int | None
        tie_word_embeddings: bool

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """Rows of the token table, padding included."""
        return self.vocab_size if self.vocab_rows is None else self.vocab_rows

    @property
    def padding_parameters(self) -> int:
        """How many numbers of the parameter tree are vocabulary padding."""
        tables = 1 if self.tie_word_embeddings else 2
        return tables * (self.rows - self.vocab_size) * self.width

    def check_rows(self) -> None:
        """Raises ValueError where there are fewer rows than tokens."""
        if self.vocab_rows is not None and self.vocab_rows < self.vocab_size:
            raise ValueError(
                f"vocab_rows is {self.vocab_rows}, fewer than the {self.vocab_size} "
                "tokens of vocab_size; it may only add rows"
            )

    def pad_vocab(self, multiple: int = 128) -> Self:
        """The config with rows added until `multiple` divides their number.

        No mesh axis divides an odd number of columns such as GPT-2's 50257 or Granite's
        49155, and GPUs multiply such matrices slowly.

        Args:
            multiple: 128 suits GPUs and TPUs; the `tensor` axis must divide it.

        Returns:
            The config with `vocab_rows` set; the log says how many rows there are.

        >>> from ntl_jax.models import GPT2Config
        >>> GPT2Config.small().pad_vocab().vocab_rows
        50304
        """
        rows = -(-self.vocab_size // multiple) * multiple
        logger.info("vocabulary padded from %d to %d rows", self.vocab_size, rows)
        return dataclasses.replace(self, vocab_rows=rows)  # pyright: ignore
