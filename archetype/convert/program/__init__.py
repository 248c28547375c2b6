"""Export of models as torch.export or ONNX programs that run without Archetype."""
