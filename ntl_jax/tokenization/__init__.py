"""From text to ids and back, with numbers split into single digits."""

from ntl_jax.tokenization.builtin import builtin_tokenizer as builtin_tokenizer
from ntl_jax.tokenization.digits import DigitTokenizer as DigitTokenizer
from ntl_jax.tokenization.hugging_face import (
    HuggingFaceTokenizer as HuggingFaceTokenizer,
)
from ntl_jax.tokenization.hugging_face import Tokenizer as Tokenizer
from ntl_jax.tokenization.hugging_face import from_transformers as from_transformers
from ntl_jax.tokenization.loading import load_tokenizer as load_tokenizer
