"""Files: atomic writes, safetensors, YAML and JSON, text, models on the hub. Imports nothing else of the package."""
