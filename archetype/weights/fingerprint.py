"""Hash of a model's weights."""

import hashlib

from torch import nn

NUM_SAMPLED = 64  # elements sampled from each tensor


def weights_fingerprint(model: nn.Module) -> str:
    """Return a hash of the names, dtypes, shapes and sampled elements of all tensors."""
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        values = tensor.detach().flatten()
        values = values[:: max(1, len(values) // NUM_SAMPLED)]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {values.double().tolist()}".encode())
    return digest.hexdigest()
