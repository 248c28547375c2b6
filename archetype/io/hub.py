"""Models of huggingface.co, through huggingface_hub; nothing else here uses a network.

The library's own settings hold: HF_HOME says where files are kept, HF_TOKEN who asks, HF_HUB_OFFLINE that nobody does.
"""

import re
from pathlib import Path

from archetype.errors import CheckpointError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
# What a model folder may hold that is read here: no code, no pickles, no other library's weights.
WANTED = ["*.json", "*.safetensors", "*.model", "*.tiktoken", "*.txt", "*.jinja"]
PICKLES = ["pytorch_model*.bin"]


def is_name(source: str | Path) -> bool:
    """Whether this may be a model of the hub: owner/name, where no local folder has the owner's name."""
    text = source.as_posix() if isinstance(source, Path) else source
    return NAME.fullmatch(text) is not None and not Path(text.split("/")[0]).exists()


def local(folder: Path, pickled: bool = False) -> Path:
    """The folder itself; where there is none and this may be a name, the model of that name on this machine."""
    if folder.exists() or not is_name(folder):
        return folder
    return download(folder.as_posix(), [*WANTED, *PICKLES] if pickled else WANTED)


def download(name: str, wanted: list[str]) -> Path:
    """The folder of a model on this machine, fetched where it is not there already.

    Args:
        name: owner/name.
        wanted: patterns of file names.

    Raises:
        CheckpointError: there is no such model, it asks for permission, or the hub cannot be reached.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))
    except GatedRepoError:
        cause = "asks for its maker's permission"
        raise CheckpointError(name, cause, "ask on its page, and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        cause = "is no folder here and no model of huggingface.co that you may read"
        raise CheckpointError(name, cause, "check the name; a private model needs HF_TOKEN") from None
    except LocalEntryNotFoundError:
        cause = "is no folder here, and huggingface.co cannot be asked"
        raise CheckpointError(name, cause, "check the path, or the network and HF_HUB_OFFLINE") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(name, f"cannot be fetched: {' '.join(str(error).split())}", "try again") from None
