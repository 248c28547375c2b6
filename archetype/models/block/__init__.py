"""Blocks (layers): sublayers with norms and residual connections."""
