"""WHAT an architecture is: frozen, closed data. Nothing here computes, and nothing imports torch."""

from archetype.spec.activation import *
from archetype.spec.adapter import *
from archetype.spec.attention import *
from archetype.spec.base import *
from archetype.spec.block import *
from archetype.spec.edit import *
from archetype.spec.embedding import *
from archetype.spec.experts import *
from archetype.spec.feedforward import *
from archetype.spec.gated_delta_net import *
from archetype.spec.head import *
from archetype.spec.initialization import *
from archetype.spec.latent_attention import *
from archetype.spec.layers import *
from archetype.spec.mamba import *
from archetype.spec.mamba2 import *
from archetype.spec.mixer import *
from archetype.spec.model import *
from archetype.spec.norm import *
from archetype.spec.part import *
from archetype.spec.pattern import *
from archetype.spec.position import *
from archetype.spec.recurrent import *
from archetype.spec.serialize import *
from archetype.spec.short_convolution import *
from archetype.spec.stack import *
