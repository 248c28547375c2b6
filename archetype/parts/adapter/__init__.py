"""Adapters: low-rank changes of a frozen model's matrices (Hu 2021; Liu 2024)."""
