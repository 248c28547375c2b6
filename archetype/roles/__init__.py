"""Roles: the interface of each extensible set of parts, one file per role."""
