"""Head that gives one vector per text (Reimers 2019)."""
