"""WHAT an architecture costs: reads specifications, and never imports torch."""

from archetype.cost.report import Report, report, total_parameters
from archetype.cost.rows import Row

__all__ = ["Report", "Row", "report", "total_parameters"]
