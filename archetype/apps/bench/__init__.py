"""Benchmarks of a model on this machine, compared with the hardware limit and with other libraries."""
