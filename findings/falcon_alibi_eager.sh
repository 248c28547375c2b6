#!/usr/bin/env bash
# One expects a model's logits not to depend on how attention is computed, nor on asking for the attention weights.
# Falcon with ALiBi: the mask that every implementation is given holds the slopes already, and "eager" adds them again, so
# that the logits of "eager", and of any call with output_attentions=True, differ from those of "sdpa", the default.
# Without ALiBi the two agree, but asking "sdpa" for the weights lets each position see those after it: the mask that "sdpa"
# may leave out is then missing. transformers 5.23.0 and 5.24.0; FalconAttention.forward and the decoder's mask.
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
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    configs = {kind: FalconConfig(**sizes, alibi=alibi, bos_token_id=1, eos_token_id=2) for kind in ("sdpa", "eager")}
    models = {kind: FalconForCausalLM._from_config(one, attn_implementation=kind) for kind, one in configs.items()}
    for tensor in models["sdpa"].parameters():
        torch.nn.init.normal_(tensor, std=0.3)
    models["eager"].load_state_dict(models["sdpa"].state_dict())
    with torch.no_grad():
        logits = {kind: model.eval()(tokens).logits for kind, model in models.items()}
        asked, first = (models["sdpa"](tokens[:, :length], output_attentions=True).logits[:, 0] for length in (20, 1))
    off[alibi] = float((logits["sdpa"] - logits["eager"]).abs().max() / logits["sdpa"].abs().max())
    future = float((asked - first).abs().max() / first.abs().max())
    print(f"alibi={alibi}: eager differs from sdpa by {off[alibi]:.1e} of the largest logit")
    print(f"alibi={alibi}: asked for weights, the first position's logits change by {future:.1e} with what follows it")
    assert (future > 1e-2) == (not alibi), "no longer as recorded"
assert off[False] < 1e-5 and off[True] > 1e-2, "no longer as recorded"
PY
