"""Downloads against a server of this machine: resumed, cut, wrong, refused."""

import hashlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ovo_clinic import fetch as fetching
from ovo_clinic.errors import UserError
from ovo_clinic.fetch import fetch

FILES = {
    "LICENSE.txt": b"free for all\n",
    "hosp/patients.csv.gz": bytes(range(256)) * 800,
    "icu/d items.csv.gz": b"\x1f\x8b" + bytes(300_000),
    "empty.csv": b"",
}


@dataclass
class Publisher:
    """What the server has, how it misbehaves, and what it was asked for."""

    files: dict[str, bytes]
    address: str = ""
    ranges: bool = True
    cuts: dict[str, list[int]] = field(default_factory=dict)  # path -> bytes sent before each cut
    failures: dict[str, list[int]] = field(default_factory=dict)  # path -> codes answered first
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def asked_for(self, path: str) -> list[str | None]:
        return [wanted for place, wanted in self.asked if place == path]


def handler(publisher: Publisher) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.removeprefix("/files/1.0/").replace("%20", " ")
            wanted = self.headers.get("Range")
            publisher.asked.append((path, wanted))
            content = publisher.files.get(path)
            if codes := publisher.failures.get(path):
                self.send_error(codes.pop(0))
            elif content is None:
                self.send_error(404)
            else:
                self.answer(path, content, wanted)

        def answer(self, path: str, content: bytes, wanted: str | None) -> None:
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and publisher.ranges else 0
            if start and start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            cuts = publisher.cuts.get(path)
            self.wfile.write(content[start : start + cuts.pop(0)] if cuts else content[start:])

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    lines = "".join(f"{hashlib.sha256(content).hexdigest()} {path}\n" for path, content in FILES.items())
    found = Publisher({**FILES, "SHA256SUMS.txt": lines.encode()})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(found)) as server:
        found.address = f"http://127.0.0.1:{server.server_port}/files/1.0"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield found
        server.shutdown()


def download(publisher: Publisher, out: Path) -> fetching.Fetched:
    return fetch("mimic-iv-demo", out, address=publisher.address, pause=0.001)


def assert_complete(out: Path) -> None:
    found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert {name: content for name, content in found.items() if name != "SHA256SUMS.txt"} == FILES


def test_everything_is_downloaded_once(publisher: Publisher, tmp_path: Path) -> None:
    first = download(publisher, tmp_path / "demo")
    assert_complete(tmp_path / "demo")
    assert len(first.downloaded) == len(FILES)
    publisher.asked.clear()
    again = download(publisher, tmp_path / "demo")
    assert again.downloaded == [] and again.files == first.files
    assert [path for path, _ in publisher.asked] == ["SHA256SUMS.txt"]


def test_a_cut_connection_goes_on_where_it_was(publisher: Publisher, tmp_path: Path) -> None:
    path = "hosp/patients.csv.gz"
    publisher.cuts[path] = [100_000, 1, 0, 0, 50_000]
    download(publisher, tmp_path)
    assert_complete(tmp_path)
    starts = [None, "bytes=100000-", "bytes=100001-", "bytes=100001-", "bytes=100001-", "bytes=150001-"]
    assert publisher.asked_for(path) == starts


def test_an_unfinished_download_of_yesterday_goes_on(publisher: Publisher, tmp_path: Path) -> None:
    path = "hosp/patients.csv.gz"
    (tmp_path / "hosp").mkdir()
    (tmp_path / f"{path}.partial").write_bytes(FILES[path][:70_000])
    (tmp_path / "LICENSE.txt.partial").write_bytes(FILES["LICENSE.txt"])  # killed before it got its name
    download(publisher, tmp_path)
    assert_complete(tmp_path)
    assert publisher.asked_for(path) == ["bytes=70000-"]
    assert publisher.asked_for("LICENSE.txt") == ["bytes=13-"]


def test_a_server_without_ranges_sends_all_of_it(publisher: Publisher, tmp_path: Path) -> None:
    publisher.ranges = False
    publisher.cuts["hosp/patients.csv.gz"] = [100_000, 150_000]
    download(publisher, tmp_path)
    assert_complete(tmp_path)


def test_a_damaged_beginning_is_downloaded_anew(publisher: Publisher, tmp_path: Path) -> None:
    (tmp_path / "icu").mkdir()
    (tmp_path / "icu" / "d items.csv.gz.partial").write_bytes(b"wrong")
    (tmp_path / "LICENSE.txt").write_bytes(b"changed since")
    download(publisher, tmp_path)
    assert_complete(tmp_path)


def test_a_busy_server_is_asked_again(publisher: Publisher, tmp_path: Path) -> None:
    publisher.failures = {"LICENSE.txt": [503, 429, 500], "SHA256SUMS.txt": [502]}
    download(publisher, tmp_path)
    assert_complete(tmp_path)


def test_a_file_that_is_not_what_the_list_says(publisher: Publisher, tmp_path: Path) -> None:
    publisher.files["icu/d items.csv.gz"] = b"something else"
    with pytest.raises(UserError, match="is not what SHA256SUMS.txt says"):
        download(publisher, tmp_path)
    assert publisher.asked_for("icu/d items.csv.gz") == [None, None]
    assert not list((tmp_path / "icu").iterdir())
    assert (tmp_path / "hosp" / "patients.csv.gz").read_bytes() == FILES["hosp/patients.csv.gz"]


def test_what_came_is_kept_when_the_server_is_gone(publisher: Publisher, tmp_path: Path) -> None:
    publisher.cuts["hosp/patients.csv.gz"] = [90_000, 0, 0, 0, 0]
    with pytest.raises(UserError, match="the connection was cut, 5 times; what came is kept"):
        download(publisher, tmp_path)
    assert (tmp_path / "hosp" / "patients.csv.gz.partial").stat().st_size == 90_000


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (None, "answered 404"),
        (b"<html>log in</html>", "holds no checksums"),
        (b"0" * 64 + b" ../outside.csv\n", "outside the folder"),
        (b"0" * 64 + b" /etc/outside.csv\n", "outside the folder"),
        (b"0" * 64 + b" lacking.csv\n", "lacking.csv: answered 404"),
    ],
)
def test_a_publisher_that_is_none(publisher: Publisher, tmp_path: Path, listed: bytes | None, message: str) -> None:
    publisher.files = {} if listed is None else {"SHA256SUMS.txt": listed}
    with pytest.raises(UserError, match=message):
        download(publisher, tmp_path / "out")
    assert not (tmp_path / "outside.csv").exists()


def test_nobody_answers(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no connection .* 5 times"):
        fetch("eicu-demo", tmp_path, address="http://127.0.0.1:9/nothing", pause=0.001)


@pytest.mark.parametrize(
    "address",
    [
        "physionet.org/files/x",
        "/data/mirror",
        "ftp://physionet.org/files/",
        "https://",
        "http://[x",
        "x:y",
        "https://a:b",
    ],
)
def test_an_address_of_no_web_server_is_one_line(address: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^--from: .*: give an address that begins with https:// or http://"):
        fetch("eicu-demo", tmp_path / "out", address=address)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["eicu", "mimic-iv", "mimic-cxr-jpg", "mimic-iv-note", "tadpole"])
def test_restricted_data_are_refused_with_where_to_get_them(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"{name} is not open: download it yourself from https://"):
        fetch(name, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_names(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'mimic-iv-demo'"):
        fetch("mimic-iv-dmo", tmp_path)
    for known in fetching.OPEN.values():
        assert known.address.startswith("https://physionet.org/files/") and known.address.endswith("/")
