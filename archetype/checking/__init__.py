"""The invariants of the roles: what must hold of every part, ours or a stranger's, run on small models of it."""
