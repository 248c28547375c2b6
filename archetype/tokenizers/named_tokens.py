"""The tokens that a folder names beside its tokenizer.json: added by its library, as transformers adds them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from archetype.tokenizers.added import FLAGS, AddedToken
from archetype.tokenizers.special_tokens import content
from archetype.tokenizers.tokenizer import check_utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
EXTRA, OLDER_EXTRA = "extra_special_tokens", "additional_special_tokens"  # the second counts where the first is empty


def add_named(backend: "Backend", config: Mapping[str, Any], added: Sequence[AddedToken]) -> None:
    """Add tokens in place. One that the vocabulary has keeps its id and takes these flags; others get the next ids.

    Args:
        backend: the library's tokenizer.
        config: the contents of tokenizer_config.json.
        added: the tokens that the folder lists with their ids, which the library does not obey.

    Source: `TokenizersBackend.__init__` in transformers 5.23.
    """
    from tokenizers import AddedToken as LibraryToken

    named = {name: flags for name, flags in _named(config) if name}
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    tokens = []
    for token in sorted(added):
        flags = token._asdict()
        del flags["id"]
        tokens.append(LibraryToken(**flags | {"special": token.special or token.content in named}))
        known.add(token.content)
    for name, flags in named.items():
        if check_utf8(name) not in known:
            tokens.append(LibraryToken(name, **{"special": True} | flags))
    if tokens:
        backend.add_tokens(tokens)


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, bool]]]:
    """Each token that a key names, and the flags that it is given there."""
    extra = config.get(EXTRA) or config.get(OLDER_EXTRA) or ()
    own = [key for key in config if key.endswith("_token") and key not in NAMED]
    values = [config.get(key) for key in (*NAMED, *own)]
    for value in [*values, *(extra.values() if isinstance(extra, dict) else extra if isinstance(extra, list) else ())]:
        if (name := content(value)) is not None:
            flags = {flag: value[flag] for flag in FLAGS if flag in value} if isinstance(value, dict) else {}
            yield name, {flag: is_set for flag, is_set in flags.items() if isinstance(is_set, bool)}
