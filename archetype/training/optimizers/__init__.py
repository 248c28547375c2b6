"""Optimizers that a recipe selects by `kind`, parameter groups, and the optimizer state as named tensors."""

from archetype.nn.parameter_roles import roles_of as roles_of
from archetype.training.optimizers.base import Optimizer as Optimizer
from archetype.training.optimizers.groups import ParameterGroup as ParameterGroup
from archetype.training.optimizers.kinds import SGD as SGD
from archetype.training.optimizers.kinds import Adafactor as Adafactor
from archetype.training.optimizers.kinds import AdamW as AdamW
from archetype.training.optimizers.kinds import Lion as Lion
from archetype.training.optimizers.kinds import Muon as Muon
from archetype.training.optimizers.state import optimizer_tensors as optimizer_tensors
from archetype.training.optimizers.state import restore_optimizer as restore_optimizer
