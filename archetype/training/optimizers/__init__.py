"""Optimizers as a recipe names them by `kind`, groups of parameters, and the state as named tensors."""

from archetype.training.optimizers.base import Optimizer
from archetype.training.optimizers.groups import ParameterGroup, roles_of
from archetype.training.optimizers.kinds import SGD, Adafactor, AdamW, Lion, Muon
from archetype.training.optimizers.state import optimizer_tensors, restore_optimizer

__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "Lion",
    "Muon",
    "Optimizer",
    "ParameterGroup",
    "optimizer_tensors",
    "restore_optimizer",
    "roles_of",
]
