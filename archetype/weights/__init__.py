"""How a matrix is kept, and what multiplies it: as float numbers, in 8 or 4 bits, or in 12 bits without loss."""
