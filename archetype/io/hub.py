"""Models and data sets of huggingface.co, through huggingface_hub; only data sets that stream use a network besides.

The library's own settings apply: HF_HOME is the cache's folder, HF_TOKEN the account, HF_HUB_OFFLINE forbids network.
"""

import re
from pathlib import Path

from archetype.errors import CheckpointError, DataError, one_line

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# The files that are read here: no code, no pickles, no other library's weights.
PATTERNS = ["*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja"]
FURTHER_FOLDERS = "[!0-9]*/*"  # all but the modules of sentence-transformers, whose names begin with their number
PICKLE_PATTERNS = ["pytorch_model*.bin"]


def is_name(source: str | Path) -> bool:
    """Whether this may be a model of the hub: owner/name, where no local folder has the owner's name."""
    text = source.as_posix() if isinstance(source, Path) else source
    return NAME.fullmatch(text) is not None and not Path(text.split("/")[0]).exists()


def local(folder: Path, allow_pickle: bool = False) -> Path:
    """The folder itself; where there is none and this may be a name, the model of that name, downloaded."""
    if folder.exists() or not is_name(folder):
        return folder
    return download(folder.as_posix(), [*PATTERNS, *PICKLE_PATTERNS] if allow_pickle else PATTERNS)


def download(name: str, patterns: list[str]) -> Path:
    """The folder of a model in the cache, downloaded where it is not there already.

    Args:
        name: owner/name.
        patterns: patterns of file names.

    Raises:
        CheckpointError: there is no such model, it asks for permission, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=[FURTHER_FOLDERS]))
    except GatedRepoError:
        cause = "needs its owner's permission"
        raise CheckpointError(name, cause, "ask on its page, and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        cause = "is not a folder here, nor a model of huggingface.co that you may read"
        raise CheckpointError(name, cause, "check the name; a private model needs HF_TOKEN") from None
    except LocalEntryNotFoundError:
        cause = "is not a folder here, and huggingface.co cannot be reached"
        raise CheckpointError(name, cause, "check the path, or the network and HF_HUB_OFFLINE") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(name, f"cannot be downloaded: {' '.join(str(error).split())}", "try again") from None


def data_set_revision(name: str) -> str:
    """The commit that a data set of the hub has now.

    Args:
        name: owner/name, or the name alone.

    Raises:
        DataError: there is no such data set, or the hub cannot be reached.
    """
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name).sha)
    except Exception as error:  # the network library beneath, which has changed twice, raises errors of its own
        cause = f"is not a folder here, and huggingface.co does not tell its revision: {one_line(str(error), 80)}"
        raise DataError(f"hf:{name}", cause, "check the name and the network, or name it: hf:NAME@REVISION") from None
