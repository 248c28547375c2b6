"""Data pipeline: read files, tokenize texts, split off validation data, and form batches."""
