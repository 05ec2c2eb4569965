"""The strict tables: every disagreement is listed, in one error."""

import numpy as np
import pytest

from ntl_jax.hf.mapping import flatten, read_params, unflatten, write_tensors
from ntl_jax.hf.rules import CheckpointError, Rule, Table

TABLE = Table(
    (
        Rule("table", "embed.weight"),
        Rule("layers/up/kernel", "block.{}.up.weight", 2, transpose=True),
    ),
    duplicates={"head.weight": "embed.weight"},
    ignored=(r"block\.\d+\.rotary\.inv_freq",),
)
SHAPES = {
    "table": np.empty((5, 2)),
    "layers": {"up": {"kernel": np.empty((2, 2, 3))}},
}


def named():
    draw = np.random.default_rng(0)
    return {
        "embed.weight": draw.normal(size=(5, 2)).astype(np.float32),
        "block.0.up.weight": draw.normal(size=(3, 2)).astype(np.float32),
        "block.1.up.weight": draw.normal(size=(3, 2)).astype(np.float32),
    }


def read(tensors):
    return read_params(TABLE, list(tensors), tensors.__getitem__, SHAPES)


def test_layers_are_stacked_and_transposed():
    tensors = named()
    params = flatten(read(tensors))
    assert list(params) == ["layers/up/kernel", "table"]
    for layer in (0, 1):
        want = tensors[f"block.{layer}.up.weight"].T
        assert np.array_equal(params["layers/up/kernel"][layer], want)
    assert all(leaf.flags.c_contiguous for leaf in params.values())


def test_other_axes_and_padding_rows_both_ways():
    table = Table(
        (
            Rule("table", "embed.weight", rows=5),
            Rule("head/kernel", "head.weight", transpose=True, rows=5),
            Rule("layers/qkv", "block.{}.qkv", 2, shape=(2, 6)),
        )
    )
    shapes = {
        "table": np.empty((8, 2)),
        "head": {"kernel": np.empty((2, 8))},
        "layers": {"qkv": np.empty((2, 2, 3, 2))},
    }
    draw = np.random.default_rng(0).standard_normal
    tensors = {
        "embed.weight": draw((5, 2), np.float32),
        "head.weight": draw((5, 2), np.float32),
        "block.0.qkv": draw((2, 6), np.float32),
        "block.1.qkv": draw((2, 6), np.float32),
    }
    params = read_params(table, list(tensors), tensors.__getitem__, shapes)
    assert np.array_equal(params["table"][:5], tensors["embed.weight"])
    assert not params["table"][5:].any() and not params["head"]["kernel"][:, 5:].any()
    assert np.array_equal(params["head"]["kernel"][:, :5], tensors["head.weight"].T)
    for part in range(3):
        want = tensors["block.1.qkv"][:, 2 * part : 2 * part + 2]
        assert np.array_equal(params["layers"]["qkv"][1, :, part], want)
    back = write_tensors(table, params, shapes)
    assert back.keys() == tensors.keys()
    assert all(np.array_equal(back[name], tensors[name]) for name in tensors)
    tensors["embed.weight"] = draw((8, 2), np.float32)
    with pytest.raises(CheckpointError, match=r"\(8, 2\).*\(5, 2\)"):
        read_params(table, list(tensors), tensors.__getitem__, shapes)


def test_transposed_and_reshaped_at_once_is_refused():
    with pytest.raises(ValueError, match=r"transpose.*shape"):
        Rule("path", "key", transpose=True, shape=(2, 6))


def test_writing_is_reading_backwards_and_contiguous():
    tensors = named()
    back = write_tensors(TABLE, read(tensors), SHAPES)
    assert back.keys() == tensors.keys()
    for name in tensors:
        assert np.array_equal(back[name], tensors[name])
        assert back[name].flags.c_contiguous


def test_all_problems_come_in_one_error():
    tensors = named()
    del tensors["block.0.up.weight"]
    tensors["block.1.up.weight"] = tensors["block.1.up.weight"].T
    tensors["block.2.up.weight"] = np.zeros((3, 2), np.float32)
    tensors["embed.weight"] = tensors["embed.weight"].astype(np.int8)
    tensors["head.weight"] = np.ones((5, 2), np.float32)
    with pytest.raises(CheckpointError) as error:
        read(tensors)
    for part in (
        "missing tensor block.0.up.weight",
        "unknown tensor block.2.up.weight",
        "embed.weight holds int8",
        "head.weight is tied to embed.weight",
    ):
        assert part in str(error.value)
    tensors = named() | {"block.1.up.weight": np.zeros((2, 3), np.float32)}
    with pytest.raises(CheckpointError, match=r"\(2, 3\).*\(3, 2\)"):
        read(tensors)


def test_known_tensors_without_a_use_are_passed_over():
    tensors = named()
    want = flatten(read(tensors))
    tensors["block.0.rotary.inv_freq"] = np.zeros(3)
    tensors["head.weight"] = tensors["embed.weight"].astype(np.float64)
    got = flatten(read(tensors))
    assert all(np.array_equal(got[k], want[k]) for k in want)
    tensors["block.0.rotary.inv_freq.more"] = np.zeros(3)
    with pytest.raises(CheckpointError, match=r"inv_freq\.more"):
        read(tensors)


def test_a_table_that_misses_or_repeats_a_parameter_is_refused():
    tensors = named()
    double = Table((*TABLE.rules, Rule("table", "embed.weight")))
    short = Table(TABLE.rules[:1])
    for table, text in ((double, "two rules fill table"), (short, "no rule for")):
        with pytest.raises(CheckpointError, match=text):
            read_params(table, list(tensors), tensors.__getitem__, SHAPES)
        with pytest.raises(CheckpointError, match=text):
            write_tensors(table, read(tensors), SHAPES)


def test_another_number_of_layers_is_refused_both_ways():
    tensors = named()
    params = read(tensors)
    params["layers"]["up"]["kernel"] = np.zeros((3, 2, 3), np.float32)
    with pytest.raises(CheckpointError, match=r"\(3, 2, 3\).*\(2,"):
        write_tensors(TABLE, params, SHAPES)


def test_flatten_and_unflatten_are_inverse():
    tree = {"a": {"b": np.ones(1), "c": {"d": np.ones(2)}}, "e": np.ones(3)}
    assert unflatten(flatten(tree)) == tree


def test_everything_wrong_with_parameters_to_write_comes_in_one_error():
    params = read(named())
    params["table"] = np.zeros((5, 3), np.float32)
    params["layers"]["up"]["kernel"] = params["layers"]["up"]["kernel"].astype(int)
    params["extra"] = np.zeros(2, np.float32)
    with pytest.raises(CheckpointError) as error:
        write_tensors(TABLE, params, SHAPES)
    text = str(error.value)
    assert "3 problem(s)" in text
    for part in (
        "table is (5, 3), the config asks for (5, 2)",
        "layers/up/kernel holds int64, not floating point",
        "unknown parameter extra",
    ):
        assert part in text
    with pytest.raises(CheckpointError, match="layers/up/kernel"):
        write_tensors(TABLE, {"table": params["table"]}, SHAPES)


def test_floats_of_eight_bits_are_refused():
    import ml_dtypes

    tensors = named()
    tensors["embed.weight"] = tensors["embed.weight"].astype(ml_dtypes.float8_e4m3fn)
    with pytest.raises(CheckpointError, match=r"embed\.weight .*float8_e4m3fn"):
        read(tensors)
