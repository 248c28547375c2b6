"""Files: atomic writes, safetensors, YAML, JSON, text, and models on huggingface.co. Imports no other subpackage."""
