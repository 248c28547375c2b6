"""Several parts side by side in one place, with their outputs added (Dong 2024, Hymba; Falcon-H1)."""
