"""Meshes and how arrays are sharded over them: the only package that names axes."""

from ntl_jax.sharding.constrain import split_rows as split_rows
from ntl_jax.sharding.mesh import batch_sharding as batch_sharding
from ntl_jax.sharding.mesh import data_shards as data_shards
from ntl_jax.sharding.mesh import make_mesh as make_mesh
from ntl_jax.sharding.mesh import mesh_of as mesh_of
from ntl_jax.sharding.mesh import on_mesh as on_mesh
from ntl_jax.sharding.rules import param_shardings as param_shardings
from ntl_jax.sharding.rules import reduced_sharding as reduced_sharding
