"""Export models as programs of torch.export or ONNX that run without Archetype."""
