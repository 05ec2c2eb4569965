"""NumberVocab: policies, contents, identity, errors and coverage."""

import gzip
import itertools
import json
from types import SimpleNamespace

import jax
import jaxtyping
import numpy as np
import pytest

from ntl_jax import NumberVocab
from ntl_jax.compat import NTLoss
from ntl_jax.numbers.vocab import POLICIES
from tests.parity.loss_cases import Vocabulary

TOKENS = ["1", "▁1", "Ġ1", " 1", "٣", "1_000", "12", "0.5", ".5", "5.", "+3", "-3"]
TOKENS += ["1e5", "inf", "nan", "½", "１", "", "▁", "1a", "▁▁1", ".", "▁-", "−", "2"]  # noqa: RUF001
MAPPING = {token: i for i, token in enumerate(TOKENS)}


class Characters:
    """One token a character, in the shape of a Hugging Face tokenizer."""

    def __init__(self, alphabet: str):
        self.vocab = {character: i for i, character in enumerate(alphabet)}

    def get_vocab(self):
        return dict(self.vocab)

    def encode(self, text):
        return [self.vocab[c] for c in text if c in self.vocab]


def build(policy, mapping=MAPPING, vocab_size=40):
    return NumberVocab.from_mapping(mapping, vocab_size=vocab_size, policy=policy)


def named(vocab):
    return {
        TOKENS[i]: float(v) for i, v in zip(vocab.token_ids, vocab.values, strict=True)
    }


def test_digits_are_bare_ascii_digits():
    assert named(build("digits")) == {"1": 1.0, "2": 2.0}


def test_numbers_are_ascii_decimals_without_their_mark():
    ones = dict.fromkeys(["1", "▁1", "Ġ1", " 1"], 1.0)
    assert named(build("numbers")) == ones | {"12": 12, "0.5": 0.5, ".5": 0.5, "2": 2}


def test_ntloss_takes_what_python_floats():
    expected = {"1": 1, " 1": 1, "٣": 3, "1_000": 1000, "12": 12, "0.5": 0.5, ".5": 0.5}
    expected |= {"5.": 5, "+3": 3, "-3": -3, "1e5": 1e5, "１": 1, "2": 2}  # noqa: RUF001
    assert named(build("ntloss")) == expected


def test_a_callable_decides_for_itself():
    words = {"one": 1.0, "two": 2.0}
    vocab = NumberVocab.from_mapping(
        {"two": 5, "one": 2, "three": 0}, vocab_size=6, policy=words.get
    )
    assert vocab.token_ids.tolist() == [2, 5] and vocab.values.tolist() == [1.0, 2.0]


def test_contents():
    tokens = {"x": 0, "7": 1, "3": 4, "9": 2, ".": 3, "▁-": 6, "-": 5}
    vocab = NumberVocab.from_mapping(tokens, vocab_size=8)
    assert vocab.token_ids.tolist() == [1, 2, 4]
    assert vocab.values.tolist() == [7.0, 9.0, 3.0]
    assert vocab.row.tolist() == [-1, 0, 1, -1, 2, -1, -1, -1]
    assert vocab.order.tolist() == [2, 0, 1]
    assert vocab.gaps.tolist() == [4.0, 2.0]
    assert vocab.point_ids.tolist() == [3] and vocab.minus_ids.tolist() == [5, 6]
    assert len(vocab) == 3 and vocab.vocab_size == 8
    assert repr(vocab) == "NumberVocab(3 numbers from 3 to 9 among 8 tokens)"
    for name in ("token_ids", "values", "row", "order", "gaps", "point_ids"):
        array = getattr(vocab, name)
        assert array.dtype == (np.float32 if name in ("values", "gaps") else np.int32)
        with pytest.raises(ValueError, match="read-only"):
            array[:] = 0


def test_identity_is_by_content():
    shuffled = dict(reversed(MAPPING.items()))
    assert build("numbers") == build("numbers", shuffled)
    assert hash(build("numbers")) == hash(build("numbers", shuffled))
    others = [build("digits"), build("numbers", vocab_size=41)]
    others.append(build("numbers", {k: v for k, v in MAPPING.items() if k != "."}))
    worth_more = build(lambda t: 1.5 * (POLICIES["numbers"](t) or 0) or None)
    for other in [*others, worth_more]:
        assert other != build("numbers") and hash(other) != hash(build("numbers"))
    assert build("numbers") != "numbers"


def test_it_has_no_leaves_and_is_no_retrace():
    traces = []

    @jax.jit
    def f(x, vocab):
        traces.append(vocab)
        return x * len(vocab)

    assert jax.tree.leaves(build("digits")) == []
    assert f(2.0, build("digits")) == 4.0 and f(3.0, build("digits")) == 6.0
    assert len(traces) == 1
    assert f(2.0, build("numbers")) == 16.0 and len(traces) == 2
    assert jax.vmap(f, (0, None))(np.ones(3, np.float32), build("digits")).shape == (3,)


@pytest.mark.parametrize(
    ("mapping", "vocab_size", "policy", "message"),
    [
        ({"a": 0}, 2, "digits", r"no number among 1 tokens under policy 'digits'"),
        ({"12": 0, "a": 1}, 2, "digits", r"no number among 2 tokens"),
        ({"1": 0, "2": 1}, 2, "digits", r"all 2 columns are numbers"),
        ({"1": 0, "a": 5}, 5, "digits", r"token 'a' has id 5, outside the 5 columns"),
        ({"1": -1, "a": 0}, 5, "digits", r"token '1' has id -1"),
        ({"1": 0, "2": 0, "a": 1}, 5, "digits", r"id 0 .*1\.0 and 2\.0"),
        ({"1": 0, "a": 1}, 5, "digit", r"unknown policy 'digit'.*digits, numbers"),
        ({"1" + "0" * 39: 0, "a": 1}, 5, "numbers", r"1e\+39, beyond 1e\+18"),
        ({"a": 0, "b": 1}, 5, lambda t: float("nan"), r"token 'a' .* nan,"),
    ],
)
def test_errors_name_the_numbers(mapping, vocab_size, policy, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        NumberVocab.from_mapping(mapping, vocab_size=vocab_size, policy=policy)


def test_two_tokens_may_be_worth_the_same():
    vocab = build("numbers")
    assert len(set(vocab.values.tolist())) < len(vocab) and (vocab.gaps >= 0).all()


def test_coverage_counts_digit_characters():
    digits = "0123456789"
    everything = Characters(digits + "ab .")
    vocab = NumberVocab.from_tokenizer(everything, vocab_size=20)
    assert vocab.coverage(everything, ["a 12", "b 3.4"]) == 1.0
    # A digit that the tokenizer drops is a digit that no loss sees.
    no_nine = Characters("012345678ab .")
    vocab = NumberVocab.from_tokenizer(no_nine, vocab_size=20)
    assert vocab.coverage(no_nine, ["a 19", "b 99"]) == 0.25
    assert vocab.coverage(no_nine, ["no digit", ""]) == 1.0
    assert vocab.coverage(no_nine, []) == 1.0


def test_digits_that_are_cut_off_are_missed():
    characters = Characters("0123456789ab .")
    vocab = NumberVocab.from_tokenizer(characters, vocab_size=20)
    texts = ["a 12", "b 3"]
    # Of five tokens the last ends the text: all four of the first are kept.
    lengths = (None, 5, 4, 3, 1)
    shares = [vocab.coverage(characters, texts, max_length=n) for n in lengths]
    assert shares == pytest.approx([1.0, 1.0, 2 / 3, 0.0, 0.0])


def test_coverage_stays_a_share_where_normalisation_makes_digits():
    pieces = SimpleNamespace(
        get_vocab=lambda: {"1": 0, "/": 1, "22": 2}, encode=lambda text: [0, 1, 2]
    )
    vocab = NumberVocab.from_mapping(pieces.get_vocab(), vocab_size=3)
    assert vocab.coverage(pieces, ["½"]) == pytest.approx(1 / 3)


def test_bytes_are_no_digits_by_their_names():
    tokens = {"5": 0, "<0xE2>": 1, "<0x82>": 2, "<0xAC>": 3, "<0x37>": 4}
    euro = SimpleNamespace(get_vocab=lambda: tokens, encode=lambda text: [0, 1, 2, 3])
    vocab = NumberVocab.from_mapping(tokens, vocab_size=5)
    assert vocab.coverage(euro, ["5€"]) == 1.0
    seven = SimpleNamespace(get_vocab=lambda: tokens, encode=lambda text: [0, 4])
    assert vocab.coverage(seven, ["57"]) == 0.5  # 0x37 is the digit 7, and no number


@pytest.fixture(scope="session")
def t5_tokenizer(data_dir):
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(data_dir / "tokenizers" / "t5")


@pytest.fixture(scope="session")
def gsm8k_answers(data_dir) -> list[str]:
    with gzip.open(data_dir / "gsm8k" / "train.jsonl.gz", "rt") as lines:
        return [json.loads(line)["answer"] for line in itertools.islice(lines, 200)]


def test_the_tokenizer_is_left_as_it_was(t5_tokenizer):
    before = (len(t5_tokenizer), t5_tokenizer.get_vocab())
    vocab = NumberVocab.from_tokenizer(t5_tokenizer, vocab_size=32128)
    vocab.coverage(t5_tokenizer, ["12"])
    assert before == (len(t5_tokenizer), t5_tokenizer.get_vocab())
    assert len(vocab) == 10 and sorted(vocab.values.tolist()) == list(range(10))


def test_t5_hides_numbers_from_the_digits_policy(t5_tokenizer, gsm8k_answers):
    digits = NumberVocab.from_tokenizer(t5_tokenizer, vocab_size=32128)
    numbers = NumberVocab.from_tokenizer(
        t5_tokenizer, vocab_size=32128, policy="numbers"
    )
    plain = ["1234", "2500", "98765"]  # pieces such as 12 and 34
    assert digits.coverage(t5_tokenizer, plain) == 0.0
    assert numbers.coverage(t5_tokenizer, plain) == 1.0
    assert digits.coverage(t5_tokenizer, gsm8k_answers) < 0.2
    assert numbers.coverage(t5_tokenizer, gsm8k_answers) > 0.8  # not in 50% or 1/


def test_a_tokenizer_shorter_than_the_logits(t5_tokenizer):
    vocab = NumberVocab.from_tokenizer(t5_tokenizer, vocab_size=32128)
    assert len(t5_tokenizer) == 32100 and vocab.row.shape == (32128,)
    vocab.check_columns(32128)
    vocab.check_columns(32256)
    with pytest.raises(ValueError, match=r"32100 columns.*vocab_size=32128"):
        vocab.check_columns(32100)
    with pytest.raises(ValueError, match="outside the 32000 columns"):
        NumberVocab.from_tokenizer(t5_tokenizer, vocab_size=32000)


def test_the_ntloss_policy_is_what_ntloss_takes():
    ntloss = pytest.importorskip("ntloss")
    tokenizer = Vocabulary(tuple(MAPPING.items()), 40, (-100, -100, -100))
    reference = ntloss.NTLoss(tokenizer, vocab_size=40, digit_level=False)
    vocab = build("ntloss")
    assert reference.number_token_ids.tolist() == vocab.token_ids.tolist()
    assert reference.number_values_dense.tolist() == vocab.values.tolist()


@pytest.mark.parametrize("mapping", [{"1": 0.5, "a": 1}, {1: 0, "a": 1}, {"1": "0"}])
def test_a_mapping_of_other_types_is_refused(mapping, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match="must map tokens"):
        NumberVocab.from_mapping(mapping, vocab_size=3)


def test_what_is_no_tokenizer_or_no_size_is_named(monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match="tokenizer is 't5-small', which has no get_v"):
        NumberVocab.from_tokenizer("t5-small", vocab_size=3)
    with pytest.raises(TypeError, match="tokenizer is 't5-small', which has no get_v"):
        NTLoss("t5-small", vocab_size=3)
    for size in ("3", None, 3.0):
        with pytest.raises(TypeError, match=f"vocab_size is {size!r}; give the number"):
            NumberVocab.from_mapping({"1": 0, "a": 1}, vocab_size=size)
