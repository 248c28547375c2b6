"""Roles: what a member of each open set of parts is asked, one file a role."""
