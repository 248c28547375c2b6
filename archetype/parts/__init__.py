"""Parts of blocks and models, one folder each: `spec.py`, `module.py`, `cost.py` and further capabilities."""
