"""Drawn bugs that are none: with them the program does the same. Each has its reason."""

# (file, line before -> line after): why nobody can notice
EQUIVALENT: dict[tuple[str, str], str] = {}
