"""Invariants of the roles, checked on small models of every part, built-in or from an extension."""
