"""Many processes that train one model, on PyTorch's engine; nowhere else is anything of torch.distributed imported."""
