"""A tokenizer of 512 tokens that needs no file: digits, characters, common words."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from ntl_jax.tokenization.hugging_face import HuggingFaceTokenizer

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
SPACE = "\u2581"
VOCAB_SIZE = 512

_DIGITS = tuple("0123456789")
_PRINTABLE = map(chr, range(ord("!"), ord("~") + 1))
_CHARACTERS = (SPACE, "\n", *(char for char in _PRINTABLE if char not in _DIGITS))
# Words of questions about numbers. No space precedes those that start a text.
_STARTS = """What Calculate Evaluate Let Solve Add Subtract Take Multiply Divide Round
How If Find The"""
_WORDS = """a about add after all and another are as at away be before between bought
box by cost costs day days divided does dollars each equal equals evaluate every
first five for four from gave gets give given half has have he her hour hours how if in
integer into is it its left let long made many minus minutes money more much multiply
nearest next number of on one or out over paid people per place plus price put
ratio remainder round school second sells sequence she simplify sold solve spend spends
sum take term than that the their then there they third three time times to together
total twice two unit value was weeks week were what when which will with work would
year years You I He She They The How There So Each In If Calculate What Then"""
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))


def _pieces() -> list[tuple[str, float]]:
    """The vocabulary in the order of its ids, each piece with its score."""
    words = [*_STARTS.split(), *(SPACE + word for word in _WORDS.split())]
    # One word (-1) beats the two or more characters (-2 each) that it replaces. Text
    # that merely spells the name of a special token or a byte is never read as one.
    never = -1000.0
    return [
        *((special, never) for special in (PAD, EOS, UNK)),
        *((character, -2.0) for character in _DIGITS + _CHARACTERS),
        *((word, -1.0) for word in words),
        *((byte, never) for byte in _BYTES),
    ]


def builtin_tokenizer() -> HuggingFaceTokenizer:
    """Builds the tokenizer, always with the same 512 tokens.

    ``<pad>`` is 0, ``</s>`` 1, ``<unk>`` 2 and the digit d is 3 + d; every digit is a
    token of its own. Common words of questions about numbers are one token, other
    words are characters, and text that is not printable ASCII is encoded as UTF-8
    bytes, so nothing is unknown. Decoding returns the text, except that U+2581, which
    represents a space, becomes one.

    Returns:
        A tokenizer with ``len(tokenizer) == 512``.

    Example:
        >>> tokenizer = builtin_tokenizer()
        >>> tokenizer.encode("What is 12 plus 30?")
        [99, 164, 13, 4, 5, 191, 13, 6, 3, 35, 1]
        >>> tokenizer.decode([3 + 4, 3 + 2, 1])
        '42'
    """
    pieces = _pieces()
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=2, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
        ]
    )
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    # A text that spells "</s>" is text.
    tokenizer.encode_special_tokens = True
    return HuggingFaceTokenizer(tokenizer, pad_token_id=0, eos_token_id=1)
