"""Sparse attention patterns (Child 2019; Beltagy 2020; Zaheer 2020)."""
