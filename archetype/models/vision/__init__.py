"""Vision transformers: a picture as a sequence of patches (Dosovitskiy 2020)."""
