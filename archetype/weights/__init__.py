"""Storage of matrices and products with them: as floats, in 8 or 4 bits, or losslessly in 12 bits."""
