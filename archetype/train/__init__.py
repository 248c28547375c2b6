"""From a recipe and a text to a trained run directory, resumable to the bit."""
