"""Folders of sentence-transformers: modules.json and what it names, read and written."""
