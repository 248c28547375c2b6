"""Surgery: change the architecture of a trained model, and say of each tensor and of the output what became of it."""
