"""Which mesh axes cut which parameter, by its path in the tree of its model."""

from collections.abc import Sequence

from jax.sharding import PartitionSpec

# `fsdp` cuts a kernel along its inputs, so that what a device gathers lies in one
# piece: parts of rows would have to be transposed before they are sent, and again for
# the optimizer. With every stack laid out alike, the partitioner has been seen to
# return wrong gradients under an unchanged loss; tests therefore compare every leaf.
_IN = PartitionSpec(None, "fsdp", "tensor")
OUTPUTS = PartitionSpec(None, ("tensor", "fsdp"))
"""Of the kernels that project back to the residual stream, [L, in, D]."""
OUTPUTS_IN_DECODING = PartitionSpec(None, "tensor", "fsdp")
"""Of the same where rows are few: a device then makes its part of all rows' states."""
_REPLICATED = PartitionSpec()

Rules = Sequence[tuple[str, PartitionSpec]]

T5_RULES: Rules = (
    (r"shared/embedding", PartitionSpec("tensor", "fsdp")),  # [V, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, V]
    (r"(encoder|decoder)/relative_bias/embedding", PartitionSpec(None, "tensor")),
    (r"(encoder|decoder)/layers/(cross_)?attention/[qkv]/kernel", _IN),
    (r"(encoder|decoder)/layers/(cross_)?attention/o/kernel", OUTPUTS),
    (r"(encoder|decoder)/layers/mlp/wi(_0|_1)?/kernel", _IN),
    (r"(encoder|decoder)/layers/mlp/wo/kernel", OUTPUTS),
    (r"(encoder|decoder)/layers/\w+/norm/scale", _REPLICATED),
    (r"(encoder|decoder)/final_norm/scale", _REPLICATED),
)

T5_REGRESSION_RULES: Rules = (
    *T5_RULES,
    (r"head/dense/kernel", PartitionSpec("fsdp", "tensor")),  # [D, D]
    (r"head/out/kernel", PartitionSpec("tensor", None)),  # [D, 1]
    (r"head/(dense|out)/bias", _REPLICATED),
)

_POSITIONS = (r"positions/embedding", PartitionSpec(None, "fsdp"))  # [P, D]
_NUMBER_HEAD: Rules = (
    (r"number_head/wi/kernel", PartitionSpec("fsdp", "tensor")),  # [D, H]
    (r"number_head/wo/kernel", PartitionSpec("tensor", None)),  # [H, 1]
    (r"number_head/w[io]/bias", _REPLICATED),
)
XVAL_RULES: Rules = (*T5_RULES, _POSITIONS, *_NUMBER_HEAD)

NUMFORMER_RULES: Rules = (
    (r"embed/embedding", PartitionSpec("tensor", "fsdp")),  # [V, D]
    _POSITIONS,
    (r"layers/attention/qkv/kernel", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"layers/mlp/wi/kernel", _IN),
    (r"layers/(attention/o|mlp/wo)/kernel", OUTPUTS),
    (r"layers/(attention/(qkv|o)|mlp/(wi|wo))/bias", _REPLICATED),
    (r"layers/(attention|mlp)/norm/(scale|bias)", _REPLICATED),
    # Not by `tensor`: cut as `wo` is, its gradient was wrong on 2 x 2 x 2 devices.
    (r"lm_head/wi/kernel", PartitionSpec("fsdp")),  # [D, F]
    (r"lm_head/wo/kernel", PartitionSpec("fsdp", "tensor")),  # [F, V]
    *_NUMBER_HEAD,
)

GPT2_RULES: Rules = (
    (r"wte/embedding", PartitionSpec("tensor", "fsdp")),  # [W, D]
    (r"wpe/embedding", PartitionSpec(None, "fsdp")),  # [n_positions, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, W]
    # [L, D, 3, N*H]: each of q, k and v is cut by heads.
    (r"layers/attention/qkv/kernel", PartitionSpec(None, "fsdp", None, "tensor")),
    (r"layers/mlp/wi/kernel", _IN),
    (r"layers/(attention/o|mlp/wo)/kernel", OUTPUTS),
    (r"layers/(attention/(qkv|o)|mlp/(wi|wo))/bias", _REPLICATED),
    (r"(layers/(attention|mlp)/norm|final_norm)/(scale|bias)", _REPLICATED),
)

# Experts are cut by units, as dense layers are, and not shared out one by one: no
# token then travels to another device, and no device waits for a popular expert.
GRANITE_RULES: Rules = (
    (r"embed/embedding", PartitionSpec("tensor", "fsdp")),  # [W, D]
    (r"lm_head/kernel", PartitionSpec("fsdp", "tensor")),  # [D, W]
    (r"layers/(attention/[qkv]|mlp/(gate|up))/kernel", _IN),
    (r"layers/(attention/o|mlp/down)/kernel", OUTPUTS),
    (r"layers/(attention|mlp)/\w+/bias", _REPLICATED),
    (r"layers/mlp/router/kernel", PartitionSpec(None, "fsdp")),  # [L, D, E]
    # [L, E, 2, F, D] and [L, E, D, F]
    (r"layers/mlp/gate_up", PartitionSpec(None, None, None, "tensor", "fsdp")),
    (r"layers/mlp/down", PartitionSpec(None, None, "fsdp", "tensor")),
    (r"(layers/(attention|mlp)/norm|final_norm)/scale", _REPLICATED),
)

RULES: dict[str, Rules] = {
    "GPT2Config": GPT2_RULES,
    "GraniteConfig": GRANITE_RULES,
    "NumformerConfig": NUMFORMER_RULES,
    "RegressionTransformerConfig": T5_RULES,
    "T5Config": T5_RULES,
    "T5RegressionConfig": T5_REGRESSION_RULES,
    "XvalConfig": XVAL_RULES,
}
"""By the class of the model's config."""
