"""Published folders in and out: Hugging Face, GGUF, families that are not registered, parity with transformers."""
