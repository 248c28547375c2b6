"""Patterns of sparse attention (Child 2019; Beltagy 2020; Zaheer 2020)."""
