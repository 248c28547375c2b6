#!/usr/bin/env bash
# One expects a model's logits not to depend on how attention is computed, nor on asking for the attention weights.
# Falcon with ALiBi: the mask that every implementation is given holds the slopes already, and "eager" adds them again, so
# that the logits of "eager", and of any call with output_attentions=True, differ from those of "sdpa", the default.
# transformers 5.23.0 and 5.24.0; `eager_attention` and the decoder's mask in modeling_falcon.py. Without ALiBi they agree.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$place/env/bin/python" -W ignore - <<'PY'
import torch
import transformers
from transformers import FalconConfig, FalconForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__)
tokens = torch.arange(3, 23)[None]
off = {}
for alibi in (False, True):
    torch.manual_seed(0)
    config = FalconConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=alibi, bos_token_id=1, eos_token_id=2
    )
    model = FalconForCausalLM(config).eval()
    for tensor in model.parameters():
        torch.nn.init.normal_(tensor, std=0.3)
    logits = {}
    for kind in ("sdpa", "eager"):
        model.set_attn_implementation(kind)
        with torch.no_grad():
            logits[kind] = model(tokens).logits
    off[alibi] = float((logits["sdpa"] - logits["eager"]).abs().max() / logits["sdpa"].abs().max())
    print(f"alibi={alibi}: eager differs from sdpa by {off[alibi]:.1e} of the largest logit")
assert off[False] < 1e-5 and off[True] > 1e-2, "no longer as recorded"
PY
