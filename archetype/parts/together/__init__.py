"""Several parts on the same input, with their outputs added (Dong 2024, Hymba; Falcon-H1)."""
