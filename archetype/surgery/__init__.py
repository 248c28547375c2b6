"""Surgery: change the architecture of a trained model, and report each tensor's origin and the effect on the output."""
