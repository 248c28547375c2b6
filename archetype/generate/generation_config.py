"""generation_config.json: each key is a setting, is known to have no effect on the text, or is named in a warning."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archetype.errors import CheckpointError, NotObeyed, errors_at
from archetype.io.files import read_json
from archetype.settings.generation import Sampling

GENERATION_CONFIG = "generation_config.json"
NEVER = "bad_words_ids"  # token sequences that are never generated
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# keys and the names of their fields in `Sampling`
READ = {name: name for name in (
    "max_new_tokens", "max_length", "min_new_tokens", "min_length", "sequence_bias", "encoder_repetition_penalty",
    "repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "forced_bos_token_id",
    "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    "renormalize_logits", "temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff",
    "eta_cutoff",
)} | {"stop_strings": "stop"}  # fmt: skip
# keys that affect only speed or additional outputs; logits that are not finite are an error
WITHOUT_EFFECT = {
    "_from_model_config", "transformers_version", "trust_remote_code", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size", "compile_config", "disable_compile",
    "continuous_batching_config", "return_dict_in_generate", "return_legacy_cache", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "remove_invalid_values", "use_mtp",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "assistant_early_exit", "assistant_lookbehind", "assistant_ensemble_weight", "target_lookbehind",
    "speculation_type", "prompt_lookup_num_tokens", "max_matching_ngram_size",
}  # fmt: skip
OF_BEAMS = ("early_stopping", "length_penalty", "diversity_penalty", "num_beam_groups")  # need num_beams > 1
NEUTRAL: dict[str, tuple[Any, ...]] = {  # values of unsupported keys that turn their feature off
    "num_beams": (1,),
    "num_return_sequences": (1,),
    "guidance_scale": (1,),
    "token_healing": (False,),
    "penalty_alpha": (0,),
}


def read_generation_config(folder: Path) -> tuple[Sampling, dict[str, Any]]:
    """Return the sampling defaults in a model folder's generation_config.json, and the parsed file.

    Without the file, or without `do_sample`, decoding is greedy, as in transformers.

    Raises:
        ArchetypeError: names the file and the key whose value is wrong.

    Warns:
        NotObeyed: names the keys that may change the text and are not supported.
    """
    file = folder / GENERATION_CONFIG
    if not file.is_file():
        return Sampling(temperature=0.0), {}
    data = read_json(file, error=CheckpointError)
    sampling = _sampling(data, file)
    if unobeyed := [key for key, value in data.items() if is_unobeyed(key, value, data)]:
        message = f"{file}: {', '.join(map(repr, unobeyed))[:200]} may change the text and is not supported"
        warnings.warn(message, NotObeyed, stacklevel=2)
    return sampling, data


def _sampling(data: Mapping[str, Any], file: Path) -> Sampling:
    values = {READ[key]: value for key, value in data.items() if key in READ and value is not None}
    for name, off in (("top_k", 0), ("max_length", 0)):
        if values.get(name) == off:
            del values[name]  # transformers writes 0 to turn these off
    if "max_new_tokens" in values:
        values.pop("max_length", None)
    special = special_ids(data, file)  # checked before the warning about other keys
    values["bad_words_ids"] = [ids for ids in special.get(NEVER, ()) if len(ids) > 1]
    if not isinstance(data.get("do_sample") or False, bool):
        raise CheckpointError(f"{file}: do_sample", f"{data['do_sample']!r} is neither true nor false", "fix the file")
    with errors_at(str(file)):
        sampling = Sampling.parse(values)
        return sampling if data.get("do_sample") else Sampling.parse(values | {"temperature": 0.0})


def is_unobeyed(key: str, value: Any, data: Mapping[str, Any]) -> bool:
    """Return whether a key requests a feature that is not supported."""
    if value is None or key in READ or key in WITHOUT_EFFECT or key in (*SPECIAL, NEVER, "do_sample"):
        return False
    if key in OF_BEAMS and data.get("num_beams") in (None, 1):
        return False
    return value not in NEUTRAL.get(key, ())


def generation_config(sampling: Sampling, original: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """Return these settings as the contents of generation_config.json, without special token ids.

    Args:
        original: contents of the original file; its other keys are kept, and all of it if the settings are unchanged.
    """
    original = {key: value for key, value in original.items() if key not in (*SPECIAL, NEVER)}
    if original and _explicit_fields(_sampling(original, Path())) == _explicit_fields(sampling):
        return original
    return {key: value for key, value in original.items() if key not in READ} | _written(sampling)


def _explicit_fields(sampling: Sampling) -> tuple[dict[str, Any], bool]:
    # without `bad_words_ids`, which are kept apart; and whether `max_new_tokens` is set explicitly
    return sampling.model_dump(exclude={NEVER}), "max_new_tokens" in sampling.model_fields_set


def _written(sampling: Sampling) -> dict[str, Any]:
    values: dict[str, Any] = {"do_sample": not sampling.greedy}
    for key, name in READ.items():
        value = getattr(sampling, name)
        if name == "max_new_tokens":  # always has a value, but not every file sets it
            is_set = name in sampling.model_fields_set
        else:
            is_set = value != Sampling.model_fields[name].default
        if is_set and not (name == "temperature" and sampling.greedy):
            values[key] = value
    return values


def special_ids(config: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Return the special token ids in one of a model's files; `eos_token_id` may be a list."""
    special = {name: config[name] for name in SPECIAL if name in config}
    for name, value in special.items():
        values = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not all(id is None or (isinstance(id, int) and not isinstance(id, bool)) for id in values):
            raise CheckpointError(f"{place}: {name}", f"{value!r:.80} is not a token id", "fix the file")
    return special | _never(config, place)


def _never(config: Mapping[str, Any], place: Path) -> dict[str, Any]:
    if (value := config.get(NEVER)) is None:
        return {}
    is_list_of_lists = isinstance(value, list) and all(isinstance(ids, list) for ids in value)
    if not is_list_of_lists or not all(type(id) is int and id >= 0 for ids in value for id in ids):
        raise CheckpointError(f"{place}: {NEVER}", f"{value!r:.80} is not a list of lists of token ids", "fix the file")
    return {NEVER: value}


def never_written(special: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the single tokens that must never be generated, except end tokens."""
    eos = special.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [eos]
    return tuple(ids[0] for ids in special.get(NEVER) or () if len(ids) == 1 and ids[0] not in ends)
