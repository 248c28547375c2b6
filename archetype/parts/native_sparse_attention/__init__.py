"""Native sparse attention: compressed blocks, selected blocks and a window (Yuan 2025, NSA)."""
