"""MegaByte: a global model over patches, a local one over the bytes of each (Yu 2023)."""
