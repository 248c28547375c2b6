"""HOW each part of a specification computes: the same file names as `spec`, mathematics only."""
