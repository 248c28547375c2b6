"""Invariants of parts, built-in or from an extension, checked on small models."""
