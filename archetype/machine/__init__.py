"""The machine that computes: its processor, its memory, its devices and what they can do at most."""
