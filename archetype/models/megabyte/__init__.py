"""MegaByte: a global model over patches, and a local model over the bytes of each patch (Yu 2023)."""
