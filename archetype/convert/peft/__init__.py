"""Adapters as folders of `peft`: adapter_config.json and adapter_model.safetensors, under the base family's names."""
