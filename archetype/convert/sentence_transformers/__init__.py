"""Read and write folders of sentence-transformers: modules.json and the files it names."""
