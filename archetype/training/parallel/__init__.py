"""Train one model with many processes. Only this package imports torch.distributed."""
