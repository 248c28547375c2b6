"""Several contents in the place of one, side by side, their outputs added (Dong 2024, Hymba; Falcon-H1)."""
