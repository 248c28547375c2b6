"""Costs of whole models, without torch: report, memory, times, parallel layouts, and models of equal cost."""
