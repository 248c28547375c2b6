"""N-gram models (Bengio 2003), including the bigram model."""
