"""Every absolute address in the repository is one that somebody else has, or that nobody can have."""

import re
from pathlib import Path

from tests.unit.test_distribution import ROOT, TEXT, texts

WITH_PICTURES = {".html", ".json", ".sh", ".svg"}
NOT_OURS = {"package-lock.json"}  # which npm writes
ADDRESS = re.compile(r"https?://([a-zA-Z0-9][\w.-]*\w)((?::\d+)?(?:/[\w.-]+){0,2})")
LOCAL = re.compile(r"localhost|0\.0\.0\.0|127(?:\.\d+)*")
RESERVED = re.compile(r"(?:.+\.)?example(?:\.(?:org|com|net))?")  # RFC 2606: nobody can have them
NEVER_ASKED = {"h", "any.where", "example.org.evil"}  # names in tests of requests from other sites
# what each is for
HOSTS = {
    "arxiv.org": "papers that docs cite",
    "creativecommons.org": "namespace in SVG files of matplotlib",
    "docs.astral.sh": "uv, in README",
    "download.pytorch.org": "PyTorch without CUDA, in README, Makefile and workflows",
    "json-schema.org": "dialect of our schemas",
    "kexue.fm": "the source of dynamic positions",
    "purl.org": "namespace in SVG files of matplotlib",
    "sebastianraschka.com": "the gallery that docs cite",
    "semver.org": "the rule of versions in CHANGELOG",
    "www.apache.org": "the license",
    "www.w3.org": "namespaces of SVG and XHTML",
}
REPOSITORIES = {
    "EleutherAI", "Kyubyong", "Lightning-AI", "TransformerLensOrg", "fla-org", "ggml-org", "huggingface", "karpathy",
    "lucidrains", "ml-explore", "pytorch",
}  # fmt: skip


def is_known(host: str, path: str) -> bool:
    if host == "github.com":
        return path.split("/")[1] in REPOSITORIES
    return host in HOSTS or host in NEVER_ASKED or bool(LOCAL.fullmatch(host) or RESERVED.fullmatch(host))


def test_no_address_is_invented() -> None:
    files = [file for file in texts(TEXT | WITH_PICTURES) if file.name not in NOT_OURS and file != Path(__file__)]
    texts_of = {file: file.read_text(encoding="utf-8") for file in files}
    addresses = {(host, path, file) for file, text in texts_of.items() for host, path in ADDRESS.findall(text)}
    assert len(addresses) > 100
    unknown = sorted(
        f"{file.relative_to(ROOT)}: {host}{path}" for host, path, file in addresses if not is_known(host, path)
    )
    assert unknown == []
    assert HOSTS.keys() <= {host for host, *_ in addresses}  # an address that is gone leaves the list


def test_an_address_of_ours_would_be_seen() -> None:
    for text in (
        "https://github.com/archetype-lm/archetype",
        "https://archetype-lm.github.io/x",
        "git+https://foo.dev",
    ):
        ((host, path),) = ADDRESS.findall(text)
        assert not is_known(host, path)


def test_the_pictures_of_the_readme_lie_in_the_repository() -> None:
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert pictures and all((ROOT / picture).is_file() for picture in pictures)
