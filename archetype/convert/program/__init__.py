"""Models as programs that run without Archetype: of torch.export, and of ONNX."""
