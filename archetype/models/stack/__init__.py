"""Stacks: consecutive layers and a final norm."""
