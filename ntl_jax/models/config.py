"""What every model's config says of its family: code asks it, never for the class."""

from typing import ClassVar, Literal

from ntl_jax.models.vocabulary import PaddedVocabulary

HeadName = Literal["lm", "regression", "numformer"]


class ModelConfig:
    """Facts about a family, the same for all its sizes.

    A config is a frozen dataclass below this class. Class attributes are no fields:
    they are in no checkpoint, and no flags.
    """

    decoder_only: ClassVar[bool] = False
    """Whether an answer is written behind its question, in one sequence."""
    head: ClassVar[HeadName] = "lm"
    """What answers: text, one number per question, or masked tokens and numbers."""
    heads: ClassVar[tuple[HeadName, ...]] = ("lm",)
    """What the trainer can make a model of these sizes answer with."""
    number_encodings: ClassVar[bool] = False
    """Whether tokens with places can have encodings, see `RegressionTransformer`."""
    embedded_ids: ClassVar[tuple[str, ...]] = ()
    """Fields that are ids of tokens which the model embeds by itself."""
    partition_rules: ClassVar[str]
    """Which table of `ntl_jax.sharding.rules.RULES` shards the parameters."""
    dropout_fields: ClassVar[tuple[str, ...]]
    """Fields that are rates of dropout."""
    positions_field: ClassVar[str | None] = None
    """The field that bounds a row's tokens; None: nothing does."""
    router_aux_loss_coef: float = 0.0
    """What the loss that balances experts is multiplied by."""

    @property
    def biased_heads(self) -> int | None:
        """How many heads have biases of their own, sharded over `tensor`; or None."""
        return None

    @property
    def longest_row(self) -> int | None:
        """How many tokens a row may have; None: any number."""
        field = self.positions_field
        return None if field is None else getattr(self, field)


class DecoderOnlyConfig(PaddedVocabulary, ModelConfig):
    """Facts of the families that write an answer behind its question."""

    decoder_only: ClassVar[bool] = True
