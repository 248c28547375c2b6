"""Downloads of models from huggingface.co with huggingface_hub, and revisions of data sets.

The library's environment variables apply: HF_HOME (cache folder), HF_TOKEN (account), HF_HUB_OFFLINE (no network).
"""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from archetype.errors import CheckpointError, DataError, one_line
from archetype.io import weight_files
from archetype.io.weight_files import INDEX, SINGLE, Header, TensorHeader

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(\w[\w./-]*))?")
CONNECTIONS = 8  # at once, for the headers of a model's files
# Files to download: no code, no pickles, no other library's weights.
PATTERNS = ["*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja"]
TOKENIZER_PATTERNS = ["*.json", "*.model", "*.tiktoken", "*.txt"]
FURTHER_FOLDERS = "[!0-9]*/*"  # all except the modules of sentence-transformers, whose names begin with a number
PICKLE_PATTERNS = ["pytorch_model*.bin"]


def is_name(source: str | Path) -> bool:
    """Return whether `source` looks like owner/name or owner/name@revision and there is no local folder `owner`."""
    text = source.as_posix() if isinstance(source, Path) else source
    return NAME.fullmatch(text) is not None and not Path(text.split("/")[0]).exists()


def local(folder: Path, allow_pickle: bool = False, patterns: list[str] = PATTERNS) -> Path:
    # a local folder has precedence over a name on the hub
    if folder.exists() or not is_name(folder):
        return folder
    return download(folder.as_posix(), [*patterns, *PICKLE_PATTERNS] if allow_pickle else patterns)


def download(name: str, patterns: list[str]) -> Path:
    """Download a model unless it is cached, and return its folder.

    Args:
        name: owner/name, or owner/name@revision with a branch, a tag or a commit.
        patterns: patterns for the names of files to download.

    Raises:
        CheckpointError: the model or revision does not exist or is gated, or huggingface.co cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = _parts(name)
    try:
        return Path(
            snapshot_download(repository, revision=revision, allow_patterns=patterns, ignore_patterns=[FURTHER_FOLDERS])
        )
    except GatedRepoError:
        cause = "requires permission from its owner"
        raise CheckpointError(name, cause, "request access on its page, and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        cause = "is neither a local folder nor a model on huggingface.co that you may read"
        raise CheckpointError(name, cause, "check the name; a private model needs HF_TOKEN") from None
    except RevisionNotFoundError:
        raise CheckpointError(
            name, f"{repository} has no revision {revision}", "use a branch, a tag or a commit"
        ) from None
    except LocalEntryNotFoundError:
        cause = "is not a local folder, and huggingface.co cannot be reached"
        raise CheckpointError(name, cause, "check the path, or the network and HF_HUB_OFFLINE") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(name, f"cannot be downloaded: {' '.join(str(error).split())}", "try again") from None


def header(name: str) -> Header:
    """Read the headers of a model's safetensors files from the cache, or from the first bytes of each file on the hub.

    Raises:
        CheckpointError: the model has no safetensors files, or huggingface.co cannot be reached.
    """
    folder = download(name, ["config.json", INDEX])
    file = weight_files.chosen(folder / "config.json", partial(_has_file, name, folder)) or SINGLE
    files = [file]
    if weight_files.is_index(folder / file):
        index = folder / file if (folder / file).is_file() else download(name, [file]) / file
        files = sorted(set(weight_files.weight_map(index).values()))
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        headers = pool.map(partial(_file_header, name, folder), files)
        return {tensor: entry for part in headers for tensor, entry in part.items()}


def _has_file(name: str, folder: Path, file: str) -> bool:
    # offline, only the cache counts
    from huggingface_hub import HfApi

    if (folder / file).is_file():
        return True
    try:
        return HfApi().file_exists(_parts(name)[0], file, revision=folder.name)
    except Exception:  # huggingface_hub lets errors of its network library through; reading the header reports them
        return False


def _file_header(name: str, folder: Path, file: str) -> Header:
    # the name of `folder` is the commit, so that all files are of one revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError

    if (folder / file).is_file():
        return weight_files.file_header(folder / file)
    try:
        metadata = HfApi().parse_safetensors_file_metadata(_parts(name)[0], file, revision=folder.name)
    except EntryNotFoundError:
        cause = f"there is no {file} to read the header from"
        raise CheckpointError(name, cause, "`archetype import --allow-pickle` reads a pickle") from None
    except Exception as error:  # including those of huggingface_hub's network library
        cause = f"the header of {file} cannot be read: {one_line(str(error), 80)}"
        raise CheckpointError(name, cause, "check the network and HF_HUB_OFFLINE") from None
    return {tensor: TensorHeader(entry.dtype, tuple(entry.shape)) for tensor, entry in metadata.tensors.items()}


def _parts(name: str) -> tuple[str, str | None]:
    match = NAME.fullmatch(name)
    return (name, None) if match is None else (match[1], match[2])


def data_set_revision(name: str) -> str:
    """Return the current commit of a data set on huggingface.co, given as owner/name or as a name without owner.

    Raises:
        DataError: the data set does not exist, or huggingface.co cannot be reached.
    """
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name).sha)
    except Exception as error:  # including those of huggingface_hub's network library, which has changed twice
        cause = f"is not a local folder, and its revision cannot be looked up: {one_line(str(error), 80)}"
        raise DataError(f"hf:{name}", cause, "check the name and the network, or name it: hf:NAME@REVISION") from None
