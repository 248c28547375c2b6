"""Read and write adapters in PEFT format: adapter_config.json and adapter_model.safetensors."""
