"""Run directories: the specification, recipe, weights and metrics of one training, and its checkpoints."""
