"""sentence-transformers folders: modules.json and the files that it names."""
