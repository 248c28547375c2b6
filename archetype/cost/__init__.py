"""Parameters, FLOPs, state and memory of each part of an architecture, computed without torch.

`archetype.estimate` sums the parts of a model; its report can also be imported from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from archetype.cost.registry import cost_of, set_fallback

if TYPE_CHECKING:
    from archetype.estimate.report import CostReport, cost_report, total_parameters
    from archetype.estimate.rows import Row

__all__ = ["CostReport", "Row", "cost_of", "cost_report", "set_fallback", "total_parameters"]
REPORT = {"CostReport": "report", "Row": "rows", "cost_report": "report", "total_parameters": "report"}

if not TYPE_CHECKING:  # a type checker would otherwise accept any attribute

    def __getattr__(name: str) -> object:
        if name not in REPORT:
            raise AttributeError(f"module 'archetype.cost' has no attribute {name!r}")
        return getattr(import_module(f"archetype.estimate.{REPORT[name]}"), name)
