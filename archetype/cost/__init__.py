"""The cost of an architecture: parameters, FLOPs, state and memory of specifications, counted without torch."""

from archetype.cost.registry import cost_of, set_fallback
from archetype.cost.report import CostReport, cost_report, total_parameters
from archetype.cost.rows import Row

__all__ = ["CostReport", "Row", "cost_of", "cost_report", "set_fallback", "total_parameters"]
