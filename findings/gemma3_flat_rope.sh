#!/usr/bin/env bash
# One expects `rope_parameters` to stretch a model's positions as `rope_scaling`, its deprecated name, does: the warning says
# to set the one instead of the other. Gemma 3 stretches its full-attention layers by {"rope_type": "linear", "factor": 8.0}
# if this is called `rope_scaling`. The same mapping as `rope_parameters` is kept, saved and without effect: only the sections
# `full_attention` and `sliding_attention` count, and the class adds them with their defaults, also to the caller's own dict.
# transformers 5.24.0; Gemma3TextConfig.convert_rope_params_to_dict.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$place/env/bin/python" -W ignore - <<'PY'
import torch
import transformers
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

print("torch", torch.__version__, "transformers", transformers.__version__)
sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "head_dim": 8}
sizes |= {"num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 256}
stretched = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}


def logits(**settings):
    torch.manual_seed(0)
    model = Gemma3ForCausalLM(Gemma3TextConfig(**sizes, **settings)).eval()
    for tensor in model.parameters():
        if tensor.dim() > 1:
            torch.nn.init.normal_(tensor, std=0.3)
    with torch.no_grad():
        return model(torch.arange(3, 43)[None]).logits


plain, changed = logits(), {}
mine = dict(stretched)
sections = {"full_attention": dict(stretched), "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
for name, settings in {
    "rope_scaling": {"rope_scaling": dict(stretched)},
    "rope_parameters": {"rope_parameters": mine},
    "rope_parameters with sections": {"rope_parameters": sections},
}.items():
    changed[name] = float((logits(**settings) - plain).abs().max() / plain.abs().max())
    print(f"{name}: the logits change by {changed[name]:.1e} of the largest")
print("the caller's own dict:", sorted(mine))
assert changed["rope_scaling"] == changed["rope_parameters with sections"] > 1e-3, "no longer as recorded"
assert changed["rope_parameters"] == 0 and "full_attention" in mine, "no longer as recorded"
PY
