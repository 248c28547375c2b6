#!/usr/bin/env bash
# One expects `generate` to give the same logits with a cache as without one, also where a text outgrows the original context
# and LongRoPE changes from short to long factors. Phi-3 drops its cache there and reads the whole text again. Phi-4-multimodal
# has a copy of that rule which drops the cache, but still reads the newest token alone: from then on it generates from a
# context of the tokens after the switch, without a warning. Phi-3's rule also resets `next_sequence_length`; the copy does not.
# transformers 5.24.0; Phi4MultimodalForCausalLM.prepare_inputs_for_generation.
set -euo pipefail
place=$(mktemp -d) && trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/env"
"$place/env/bin/pip" install --quiet --quiet torch==2.13.0 transformers==5.24.0 numpy==2.4.6
"$place/env/bin/python" -W ignore - <<'PY'
import torch
import transformers
from transformers import Phi3Config, Phi3ForCausalLM, Phi4MultimodalConfig, Phi4MultimodalForCausalLM

print("torch", torch.__version__, "transformers", transformers.__version__)
PROMPT, SWITCH, NEW = 20, 24, 10
sizes = {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
sizes |= {"num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
sizes |= {"original_max_position_embeddings": SWITCH, "partial_rotary_factor": 1.0}
factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
rotary = {"rope_type": "longrope", "original_max_position_embeddings": SWITCH, "rope_theta": 1e4, **factors}
tower = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
towers = {"vision_config": {**tower, "num_hidden_layers": 1}}
towers["audio_config"] = {**tower, "num_blocks": 1, "nemo_conv_channels": 16, "ext_pw_out_channel": 16, "input_size": 8}


@torch.no_grad()
def differences(model):
    """Of each generated token, how far the logits differ from those of the whole text, relative to the largest."""
    torch.manual_seed(0)
    for tensor in model.eval().parameters():
        if tensor.dim() > 1:
            torch.nn.init.normal_(tensor, std=0.3)
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    done = model.generate(torch.arange(3, 3 + PROMPT)[None], **settings)
    whole = [model(done.sequences[:, : PROMPT + i]).logits[:, -1] for i in range(NEW)]
    return [float((a - b).abs().max() / b.abs().max()) for a, b in zip(done.logits, whole)]


phi3 = differences(Phi3ForCausalLM(Phi3Config(**sizes, rope_parameters=dict(rotary))))
phi4 = differences(Phi4MultimodalForCausalLM(Phi4MultimodalConfig(**sizes, **towers, rope_parameters=dict(rotary))))
for name, each in {"Phi-3": phi3, "Phi-4-multimodal": phi4}.items():
    print(name, " ".join(f"{one:.0e}" for one in each))
before = SWITCH - PROMPT + 1  # logits of texts up to the switch
assert max(phi3 + phi4[:before]) < 1e-4, "no longer as recorded"
assert min(phi4[before:]) > 0.1, "no longer as recorded"
PY
