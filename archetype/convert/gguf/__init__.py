"""GGUF, the format of llama.cpp: keys, tensor names and vocabularies of every family that it computes."""
