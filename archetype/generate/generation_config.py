"""generation_config.json: every key is a setting, known to change no text, or named in a warning."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from archetype.errors import ArchetypeError, CheckpointError, NotObeyed
from archetype.generate.settings import Sampling
from archetype.io.files import read_json

GENERATION_CONFIG = "generation_config.json"
NEVER = "bad_words_ids"  # in the files of translators, a list of the sequences of tokens that are never written
SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
# keys that are fields of the same name, and those of another
READ = {name: name for name in (
    "max_new_tokens", "max_length", "min_new_tokens", "min_length", "sequence_bias", "encoder_repetition_penalty",
    "repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "forced_bos_token_id",
    "forced_eos_token_id", "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
    "renormalize_logits", "temperature", "top_h", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff",
    "eta_cutoff",
)} | {"stop_strings": "stop"}  # fmt: skip
# keys that change how fast a text comes, what is given beside it, or nothing; logits that are not finite are an error
WITHOUT_EFFECT = {
    "_from_model_config", "transformers_version", "trust_remote_code", "use_cache", "cache_implementation",
    "cache_config", "max_cache_len", "low_memory", "prefill_chunk_size", "compile_config", "disable_compile",
    "continuous_batching_config", "return_dict_in_generate", "return_legacy_cache", "output_attentions",
    "output_hidden_states", "output_scores", "output_logits", "remove_invalid_values", "use_mtp",
    "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold",
    "assistant_early_exit", "assistant_lookbehind", "assistant_ensemble_weight", "target_lookbehind",
    "speculation_type", "prompt_lookup_num_tokens", "max_matching_ngram_size",
}  # fmt: skip
OF_BEAMS = ("early_stopping", "length_penalty", "diversity_penalty", "num_beam_groups")  # nothing without beams
NEUTRAL: dict[str, tuple[Any, ...]] = {  # values of keys that are not obeyed with which they ask for nothing
    "num_beams": (1,), "num_return_sequences": (1,), "guidance_scale": (1,), "token_healing": (False,),
    "penalty_alpha": (0,),
}  # fmt: skip


def read_generation_config(folder: Path) -> tuple[Sampling, dict[str, Any]]:
    """The defaults that a model folder's generation_config.json sets, and all its contents.

    Without the file, or without `do_sample`, decoding is greedy, as in transformers.

    Raises:
        ArchetypeError: names the file and the key whose value is wrong.

    Warns:
        NotObeyed: names the keys that may change a text, and do not here.
    """
    file = folder / GENERATION_CONFIG
    if not file.is_file():
        return Sampling(temperature=0.0), {}
    data = read_json(file, error=CheckpointError)
    sampling = _sampling(data, file)
    if unobeyed := [key for key, value in data.items() if is_unobeyed(key, value, data)]:
        message = f"{file}: {', '.join(map(repr, unobeyed))[:200]} may change texts, which is not done here"
        warnings.warn(message, NotObeyed, stacklevel=2)
    return sampling, data


def _sampling(data: Mapping[str, Any], file: Path) -> Sampling:
    """The settings that the contents of a file say; errors as for `read_generation_config`."""
    values = {READ[key]: value for key, value in data.items() if key in READ and value is not None}
    for name, off in (("top_k", 0), ("max_length", 0)):
        if values.get(name) == off:
            del values[name]  # the library's way to say that it is off
    if "max_new_tokens" in values:
        values.pop("max_length", None)
    special = special_ids(data, file)  # refused before a notice of the rest
    values["bad_words_ids"] = [ids for ids in special.get(NEVER, ()) if len(ids) > 1]
    if not isinstance(data.get("do_sample") or False, bool):
        raise CheckpointError(f"{file}: do_sample", f"{data['do_sample']!r} is neither true nor false", "fix the file")
    try:
        sampling = Sampling.parse(values)
        return sampling if data.get("do_sample") else Sampling.parse(values | {"temperature": 0.0})
    except ArchetypeError as error:
        raise error.at(str(file)) from None


def is_unobeyed(key: str, value: Any, data: Mapping[str, Any]) -> bool:
    """Whether a key asks for what is not done here."""
    if value is None or key in READ or key in WITHOUT_EFFECT or key in (*SPECIAL, NEVER, "do_sample"):
        return False
    if key in OF_BEAMS and data.get("num_beams") in (None, 1):
        return False
    return value not in NEUTRAL.get(key, ())


def generation_config(sampling: Sampling, said: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """These settings as the contents of generation_config.json, but for ids of special tokens.

    Args:
        sampling: the settings.
        said: by the file that the model came with, whose other keys are kept; all are where the settings are its own.
    """
    said = {key: value for key, value in said.items() if key not in (*SPECIAL, NEVER)}
    if said and _said_fields(_sampling(said, Path())) == _said_fields(sampling):
        return said
    return {key: value for key, value in said.items() if key not in READ} | _written(sampling)


def _said_fields(sampling: Sampling) -> tuple[dict[str, Any], bool]:
    """All settings but sequences that are never written, which stand beside them; and whether a limit is said."""
    return sampling.model_dump(exclude={NEVER}), "max_new_tokens" in sampling.model_fields_set


def _written(sampling: Sampling) -> dict[str, Any]:
    """The keys of settings that are not their defaults."""
    values: dict[str, Any] = {"do_sample": not sampling.greedy}
    for key, name in READ.items():
        value = getattr(sampling, name)
        if name == "max_new_tokens":  # which everyone has, and not every file says
            is_said = name in sampling.model_fields_set
        else:
            is_said = value != Sampling.model_fields[name].default
        if is_said and not (name == "temperature" and sampling.greedy):
            values[key] = value
    return values


def special_ids(config: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """The ids of special tokens in one of a model's files: a text may end with one of several."""
    special = {name: config[name] for name in SPECIAL if name in config}
    for name, value in special.items():
        values = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if not all(id is None or (isinstance(id, int) and not isinstance(id, bool)) for id in values):
            raise CheckpointError(f"{place}: {name}", f"{value!r:.80} is not a token id", "fix the file")
    return special | _never(config, place)


def _never(config: Mapping[str, Any], place: Path) -> dict[str, Any]:
    """Sequences of tokens that are never written, where the file names some."""
    if (value := config.get(NEVER)) is None:
        return {}
    listed = isinstance(value, list) and all(isinstance(one, list) for one in value)
    if not listed or not all(type(id) is int and id >= 0 for one in value for id in one):
        raise CheckpointError(f"{place}: {NEVER}", f"{value!r:.80} is not a list of lists of token ids", "fix the file")
    return {NEVER: value}


def never_written(special: Mapping[str, Any]) -> tuple[int, ...]:
    """The single tokens that are never written; what ends a text is, whatever the file says."""
    eos = special.get("eos_token_id")
    ends = eos if isinstance(eos, list) else [eos]
    return tuple(ids[0] for ids in special.get(NEVER) or () if len(ids) == 1 and ids[0] not in ends)
