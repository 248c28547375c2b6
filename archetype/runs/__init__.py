"""Run directories: specification, recipe, weights, metrics and checkpoints of a training run."""
