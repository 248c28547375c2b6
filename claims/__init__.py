"""The 25 claims of the source documents: an experiment file for each, with its checks and models."""
