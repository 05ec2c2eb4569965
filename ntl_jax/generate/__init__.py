"""Decoding with a key/value cache, as one compiled program a shape."""

from ntl_jax.generate.entry import Generation as Generation
from ntl_jax.generate.entry import generate as generate
from ntl_jax.generate.number_distributions import (
    number_distributions as number_distributions,
)
from ntl_jax.generate.programs import beam_search as beam_search
from ntl_jax.generate.programs import greedy as greedy
from ntl_jax.generate.programs import sample as sample
