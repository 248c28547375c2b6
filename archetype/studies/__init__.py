"""Reproducible experiments about claims on architectures, each with a verdict."""
