"""Model inspection: traces with interventions, attention, logit lens, residual stream, experts, recurrent states."""

from archetype.inspection.inspection import VIEWS, Inspection
from archetype.inspection.trace import Trace, Tracer
from archetype.inspection.view import View

__all__ = ["VIEWS", "Inspection", "Trace", "Tracer", "View"]
