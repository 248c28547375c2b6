"""Import from and export to published formats: Hugging Face, GGUF, PEFT, Sentence Transformers and ONNX."""
