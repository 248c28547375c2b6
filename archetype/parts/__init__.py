"""Parts of blocks and models, a folder each: `spec.py`, `module.py`, `cost.py` and further capabilities."""
