"""One layer: its contents, and the norms and residuals around them."""
