"""Distillation: learn from the outputs of another model."""
