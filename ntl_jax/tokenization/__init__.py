"""Tokenizers, which split numbers into single digits or encode them as one token."""

from ntl_jax.numbers.place_tokens import read_place_digit as read_place_digit
from ntl_jax.numbers.place_tokens import read_place_value as read_place_value
from ntl_jax.tokenization.builtin import builtin_tokenizer as builtin_tokenizer
from ntl_jax.tokenization.digits import DigitTokenizer as DigitTokenizer
from ntl_jax.tokenization.hugging_face import (
    HuggingFaceTokenizer as HuggingFaceTokenizer,
)
from ntl_jax.tokenization.hugging_face import Tokenizer as Tokenizer
from ntl_jax.tokenization.hugging_face import from_transformers as from_transformers
from ntl_jax.tokenization.loading import load_tokenizer as load_tokenizer
from ntl_jax.tokenization.masked_numbers import MaskedBatch as MaskedBatch
from ntl_jax.tokenization.masked_numbers import MaskedRow as MaskedRow
from ntl_jax.tokenization.masked_numbers import mask_at_random as mask_at_random
from ntl_jax.tokenization.masked_numbers import mask_last_number as mask_last_number
from ntl_jax.tokenization.pieces import NumberCounts as NumberCounts
from ntl_jax.tokenization.regression_transformer import (
    RegressionTransformerTokenizer as RegressionTransformerTokenizer,
)
from ntl_jax.tokenization.regression_transformer import (
    padded_vocab_size as padded_vocab_size,
)
from ntl_jax.tokenization.xval import NumberedIds as NumberedIds
from ntl_jax.tokenization.xval import XvalTokenizer as XvalTokenizer
