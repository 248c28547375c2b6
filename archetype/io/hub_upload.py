"""Upload of a folder to a model repository on huggingface.co with huggingface_hub. No other module uploads anything."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from archetype.errors import CheckpointError, one_line
from archetype.io.hub import NAME
from archetype.io.weight_files import INDEX

if TYPE_CHECKING:
    from huggingface_hub import HfApi

REPLACED = ["*.safetensors", INDEX]  # files of an earlier upload; shards of two models must not be mixed


@dataclass(frozen=True)
class Destination:
    """Repository and branch of an upload.

    Attributes:
        repository: owner/name.
        revision: branch, which is created if it does not exist (default: main).
        private: visibility (default: unchanged; a new repository follows the account's setting).
    """

    repository: str
    revision: str | None = None
    private: bool | None = None

    def __str__(self) -> str:
        return self.repository if self.revision is None else f"{self.repository}@{self.revision}"


def destination(name: str, revision: str | None, private: bool | None) -> Destination:
    """Parse the destination of an upload, owner/name or owner/name@revision.

    Raises:
        CheckpointError: the name is invalid, or contains a branch that differs from `revision`.
    """
    match = NAME.fullmatch(name)
    if match is None or match[1].count("/") != 1:
        raise CheckpointError(name, "is not a name on the hub", "use owner/name, or owner/name@branch")
    if None not in (match[2], revision) and match[2] != revision:
        raise CheckpointError("--revision", f"{revision} contradicts the {match[2]} of {name}", "use one of them")
    if revision is not None and not re.fullmatch(r"\w[\w./-]*", revision):
        raise CheckpointError("--revision", f"{revision!r:.80} is not a branch name", "use a name such as v1")
    return Destination(match[1], match[2] or revision, private)


def check_account() -> None:
    """Check the account on huggingface.co before any long work.

    Raises:
        CheckpointError: the token is missing or refused, or huggingface.co cannot be reached.
    """
    from huggingface_hub import HfApi, constants, get_token

    if constants.HF_HUB_OFFLINE:
        cause = "HF_HUB_OFFLINE forbids network access"
        raise CheckpointError("upload", cause, "unset it, or add --dry-run, which sends nothing")
    if get_token() is None:
        remedy = "set HF_TOKEN to a token with write access, or run `hf auth login`; --dry-run works without a token"
        raise CheckpointError("upload", "huggingface.co requires a token, but no token is set", remedy)
    with _hub_errors("upload"):
        HfApi().whoami()


def send(folder: Path, to: Destination, message: str) -> str:
    """Upload all files of a folder as one commit that replaces existing weights. Return the commit's URL.

    Args:
        to: destination, whose repository is created if it does not exist.

    Raises:
        CheckpointError: the account has no write access, the repository has another visibility, or the network fails.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    with _hub_errors(to.repository):
        # `private` has no effect on an existing repository
        api.create_repo(to.repository, private=to.private, exist_ok=True)
        _check_privacy(api, to)
        # pull requests (refs/pr/1) exist already, and cannot be created as branches
        if to.revision not in (None, "main") and not str(to.revision).startswith("refs/"):
            api.create_branch(to.repository, branch=str(to.revision), exist_ok=True)
        commit = api.upload_folder(
            repo_id=to.repository,
            folder_path=folder,
            commit_message=message,
            revision=to.revision,
            delete_patterns=REPLACED,
        )
    return str(commit.commit_url)


def _check_privacy(api: "HfApi", to: Destination) -> None:
    # an existing repository may have another visibility than requested
    if to.private is None or (is_private := bool(api.model_info(to.repository).private)) == to.private:
        return
    cause = f"exists and is {'private' if is_private else 'public'}"
    remedy = f"change it on its page, or remove --{'private' if to.private else 'public'}"
    raise CheckpointError(to.repository, cause, remedy)


@contextmanager
def _hub_errors(target: str) -> Iterator[None]:
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except CheckpointError:
        raise
    except HfHubHTTPError as error:
        status, detail = error.response.status_code, one_line(error.server_message or "", 80)
        if status == 401:
            cause, remedy = "the token was refused", "create a new one on huggingface.co/settings/tokens, for HF_TOKEN"
        elif status == 403:
            cause, remedy = "the token may not write there", "use a token with write access, or another owner"
        else:
            cause, remedy = f"the hub answers {status}", "try again"
        raise CheckpointError(target, f"{cause}{f' ({detail})' if detail else ''}", remedy) from None
    except Exception as error:  # including those of huggingface_hub's network library, which has changed twice
        cause = f"{constants.ENDPOINT} cannot be reached: {one_line(str(error), 80)}"
        raise CheckpointError(target, cause, "check the network; --dry-run works offline") from None
