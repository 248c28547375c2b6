"""Vision transformers: images as sequences of patches (Dosovitskiy 2020)."""
