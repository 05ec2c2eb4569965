"""Frozen dataclasses that describe a run; every field is a command-line flag."""

from train.config.data import DataConfig as DataConfig
from train.config.loss import NUMBER_TERMS as NUMBER_TERMS
from train.config.loss import LossConfig as LossConfig
from train.config.mesh import HostsConfig as HostsConfig
from train.config.mesh import MeshConfig as MeshConfig
from train.config.mesh import mesh_shape as mesh_shape
from train.config.ranges import ConfigError as ConfigError
from train.config.run import EvalConfig as EvalConfig
from train.config.run import OptimizerConfig as OptimizerConfig
from train.config.run import TrainConfig as TrainConfig
from train.config.validate import validate as validate
from train.config.validate import validate_data as validate_data
