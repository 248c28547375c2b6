"""WHAT an architecture costs: reads specifications, and never imports torch."""

from archetype.cost.report import Report, Row, report, total_parameters

__all__ = ["Report", "Row", "report", "total_parameters"]
