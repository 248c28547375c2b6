"""Layers one after the other, and the norm at their end."""
