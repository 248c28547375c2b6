"""Elementwise nonlinearities."""
