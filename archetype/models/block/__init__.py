"""Blocks (layers): contents with norms and residual connections."""
