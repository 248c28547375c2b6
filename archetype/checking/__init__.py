"""Invariants of all parts, checked on small models; parts may be built-in or from an extension."""
