"""Feed-forward parts, plain and gated (Vaswani 2017; Shazeer 2020)."""
