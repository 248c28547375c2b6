"""Channel mixing: the feed-forward network of RWKV, which also reads the previous token."""
