"""Costs of extensions, measured on their modules: parts without a registered cost, and checks of registered costs."""

from typing import Any

from archetype.built_costs.around import MeasuredResidualCost, MeasuredWiringCost
from archetype.built_costs.contents import (
    MeasuredFeedForwardCost,
    MeasuredMixerCost,
    MeasuredRouterCost,
    MeasuredSelectionCost,
)
from archetype.built_costs.models import ModelsAsBuilt
from archetype.built_costs.parts import MeasuredEmbeddingCost, MeasuredHeadCost, MeasuredNormCost, MeasuredPositionCost
from archetype.cost.as_built import count_as_built
from archetype.cost.formula import Formula
from archetype.cost.registry import PartCost, set_fallback
from archetype.roles.embedding import TokenEmbedding
from archetype.roles.feedforward import FeedForward
from archetype.roles.head import Head
from archetype.roles.mixer import Mixer
from archetype.roles.norm import Norm
from archetype.roles.position import EmbeddingPosition, MixerPosition
from archetype.roles.residual import Residual
from archetype.roles.router import Router
from archetype.roles.selection import KeySelection
from archetype.roles.wiring import Wiring
from archetype.spec.base import Spec

ROLES: dict[type[Spec], type[PartCost]] = {
    Mixer: MeasuredMixerCost,
    FeedForward: MeasuredFeedForwardCost,
    Norm: MeasuredNormCost,
    Router: MeasuredRouterCost,
    Head: MeasuredHeadCost,
    TokenEmbedding: MeasuredEmbeddingCost,
    Wiring: MeasuredWiringCost,
    Residual: MeasuredResidualCost,
    EmbeddingPosition: MeasuredPositionCost,
    MixerPosition: MeasuredPositionCost,
    KeySelection: MeasuredSelectionCost,
}


def measured(part: Spec, d: Formula, *sizes: Any) -> PartCost | None:
    """Return the measured cost of a part without a registered cost; None if its role is not in `ROLES`."""
    cost = next((cost for role, cost in ROLES.items() if isinstance(part, role)), None)
    return None if cost is None else cost(part, d, *sizes)


set_fallback(measured)
count_as_built(ModelsAsBuilt())
