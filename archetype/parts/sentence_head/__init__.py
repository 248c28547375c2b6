"""A head that gives one vector for each text (Reimers 2019)."""
