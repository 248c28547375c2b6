"""Read and write GGUF, the format of llama.cpp: keys, tensors and vocabularies."""
