"""Short convolutions inside a part, which let neighbouring tokens mix (canon layers; Inkling)."""
