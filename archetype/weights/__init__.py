"""Storage of matrices, and products with them: float, int8, int4, or lossless 12 bits."""
