"""Head that returns one vector per text (Reimers 2019)."""
