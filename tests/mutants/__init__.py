"""Planted bugs that the tests must notice: `make mutants`."""
