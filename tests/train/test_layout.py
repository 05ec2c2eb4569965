"""What a run says of its rows' lengths, and refuses of them."""

import re

import pytest

from ntl_jax.models import GPT2Config
from tests.train.helpers import TINY, changed
from train.config import ConfigError
from train.data.inputs import layout, load_inputs


def lines(**fields) -> list[str]:
    config = changed(TINY, **fields)
    return layout(load_inputs(config, config.model))


def test_padded_packed_and_bucketed_rows_are_counted():
    (padded,) = lines(data__max_operand=99)
    assert padded.startswith("64 training rows, padded to 16 + 8 tokens, ")
    assert padded.endswith(", 0 questions and 0 answers truncated")
    (bucketed,) = lines(data__max_operand=99, data__buckets=2)
    assert "padded to one of" in bucketed and "up to 16 + 8 tokens" in bucketed
    (packed,) = lines(data__max_operand=99, data__packing=True, data__packed_length=64)
    rows, width = packed.split("packed into ")[1].split(" rows of ")
    assert 10 < int(rows) < 25 and width.startswith("56 + 16 tokens")


def test_truncation_is_counted_on_both_sides_and_in_every_set():
    train, *sets = lines(
        data__max_operand=99, data__max_source_length=10, data__max_target_length=2
    )
    cut = re.findall(r"(\d+) (questions|answers)", train)
    assert [side for _, side in cut] == ["questions", "answers"]
    assert all(0 < int(n) <= 64 for n, _ in cut)
    assert [line.split(":")[0] for line in sets] == ["interpolation", "extrapolation"]
    assert "of 20 rows 20 questions and 20 answers truncated" in sets[1]


def test_packed_rows_longer_than_the_table_of_positions_are_refused():
    model = GPT2Config(
        vocab_size=512,
        n_positions=40,
        n_embd=8,
        n_layer=1,
        n_head=1,
        bos_token_id=1,
        eos_token_id=1,
        pad_token_id=0,
    )
    config = changed(TINY, model=model, data__packing=True, data__packed_length=48)
    with pytest.raises(ConfigError, match=r"48 tokens, more than the model's 40 pos"):
        load_inputs(config, config.model)
    shorter = changed(config, data__packed_length=40)
    assert load_inputs(shorter, shorter.model).train.shape == (40,)
