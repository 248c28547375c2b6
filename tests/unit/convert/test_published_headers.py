"""Headers of published checkpoints: what is read of them, and that its parameters are the header's to the unit."""

import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import torch
from transformers import NemotronHConfig, NemotronHForCausalLM

from archetype.convert.infer import read_unknown
from archetype.cost import total_parameters
from archetype.errors import ArchetypeError, UnreadKeys
from archetype.families.registry import family_of
from archetype.io.low_bit.header import plain_header
from archetype.io.low_bit.registry import schemes_of
from archetype.io.low_bit.settings import read_settings, without_settings
from archetype.io.weight_files import Header, TensorHeader

# What is not read yet, and why.
REFUSED = {
    "OpenAssistant__oasst-rm-2.1-pythia-1.4b-epoch-2.5": "config.json: architectures: 'GPTNeoXRewardModel' is not a",
    "Qwen__Qwen-72B": "transformer.h.0.mlp.w2.weight: belongs to an unknown part",  # own code, like the next two
    "THUDM__chatglm3-6b": "transformer.output_layer.weight: belongs to an unknown part",
    "THUDM__chatglm3-6b-32k": "transformer.output_layer.weight: belongs to an unknown part",
    "internlm__internlm2-chat-1_8b": "model.layers.0.attention.wqkv.weight: belongs to an unknown part",  # own code
    "mojanjp__phi-2": "layers.0.wte.weight: belongs to an unknown part",  # mixformer-sequential
}
COUNTED_ELSEWHERE = re.compile(r".*\.(inv_freq|masked_bias|attn\.bias|attention\.bias|position_ids)")


def published(folder: Path) -> Iterator[tuple[str, dict[str, Any], Header]]:
    for file in sorted(folder.glob("*.header.json")):
        entries = json.loads(file.read_text())
        metadata = entries.pop("__metadata__")
        if not (place := folder.parent / "configs" / metadata["config"]).is_file():
            continue  # kept elsewhere
        config = json.loads(place.read_text())
        header = {name: TensorHeader(entry["dtype"], tuple(entry["shape"])) for name, entry in entries.items()}
        yield file.name.removesuffix(".header.json"), config, header


def difference(config: dict[str, Any], header: Header) -> int:
    """How many numbers of the header the model does not have, but for those that no model counts."""
    settings, config = read_settings(config), without_settings(config)
    plain = header if settings is None else plain_header(header, settings)
    counted = {name: prod(tensor.shape) for name, tensor in plain.items() if not COUNTED_ELSEWHERE.fullmatch(name)}
    family = family_of(config) or read_unknown(config, {name: tensor.shape for name, tensor in plain.items()})
    left_out = family.reading.left_out if family.reading else ()
    spec = family.format.spec_from(config)
    return sum(counted.values()) - sum(counted.get(name, 0) for name in left_out) - total_parameters(spec)


def test_each_header_is_read_with_its_own_sum_or_refused_for_a_known_reason(shared: Path) -> None:
    refused, differing, named, read = {}, {}, {}, []
    for name, config, header in published(shared / "published" / "headers_derived"):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", UnreadKeys)
            try:
                if (extra := difference(config, header)) != 0:
                    differing[name] = extra
                else:
                    read.append(name)
            except ArchetypeError as error:
                refused[name] = str(error)
        if told:
            named[name] = [str(one.message) for one in told]
    assert differing == {}
    assert named == {"internlm__internlm-20b": ["config.json: no llama class reads bias"]}
    assert {name: text for name, text in refused.items() if not text.startswith(REFUSED.get(name, "?"))} == {}
    assert len(read) >= 25
    assert {"openai__gpt-oss-20b", "XiaomiMiMo__MiMo-7B"} <= set(read)  # MXFP4, and layers that predict further tokens


def test_the_methods_of_all_pinned_configurations_are_read(shared: Path) -> None:
    refused, read = {}, Counter[str]()
    for file in sorted((shared / "published" / "configs").glob("*.json")):
        config = json.loads(file.read_text())
        is_tools = file.name.endswith("hf_quant_config.json")
        settings = (
            read_settings({"quantization_config": config} if is_tools else config) if isinstance(config, dict) else None
        )
        try:
            if settings is not None and schemes_of(settings):
                read[str(settings["quant_method"])] += 1
        except ArchetypeError as error:
            refused[file.name] = str(error)
    assert refused == {}
    assert (
        sum(read.values()) >= 60
        and {"fp8", "fbgemm_fp8", "mxfp4", "modelopt", "compressed-tensors", "gptq"} <= read.keys()
    )


def test_layers_that_are_a_mixer_or_a_network_alone_are_counted_as_published(shared: Path) -> None:
    """Nemotron-H; 31.6 billion and 56 billion, by the shapes of transformers' modules."""
    for name, count in (
        ("NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", 31_577_937_344),
        ("Nemotron-H-56B-Base-8K", 56_324_350_464),
    ):
        config = json.loads((shared / "published" / "configs" / f"nvidia__{name}.json").read_text())
        with torch.device("meta"):
            model = NemotronHForCausalLM(NemotronHConfig(**config))
        shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        spec = read_unknown(config, shapes).format.spec_from(config)
        assert total_parameters(spec) == model.num_parameters() == count
