"""Block index: key selection by blocks of keys (MiniMax M3, MoBA)."""
