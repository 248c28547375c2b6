"""The 25 claims of the source documents: an experiment file each, and the checks and models that they name."""
