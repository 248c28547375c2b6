"""Claims about architectures, each with a verdict that anyone can run again."""
