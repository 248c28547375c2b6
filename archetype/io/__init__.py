"""Files: atomic writes, safetensors, YAML and JSON, text, models of the hub. Imports nothing else of the package."""
