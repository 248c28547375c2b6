"""Models of the newest n tokens (Bengio 2003); of one token, the bigram model."""
