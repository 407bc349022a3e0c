"""Downloads open demo data from their publisher: the one place of this package that uses the network.

A download that was cut goes on where it was (HTTP ranges), and every file is checked against the publisher's list of
checksums, those that were there before too.
"""

import fcntl
import hashlib
import http.client
import os
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast
from urllib.parse import quote, urlsplit

from ovo_clinic.checksums import SUMS, parse_sums
from ovo_clinic.errors import UserError
from ovo_clinic.registry import suggest

_PIECE = 1 << 20
_A_PART, _NOTHING_BEYOND = 206, 416
_TRIES = 5  # in a row without a byte
_LIST_BYTES = 1 << 22
_TIMEOUT = 60.0
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Publication:
    """An open data set.

    Attributes:
        title: what it is.
        address: folder of its files, with their list of checksums.
        licence: what it may be used under.
    """

    title: str
    address: str
    licence: str


OPEN = {
    "mimic-iv-demo": Publication(
        "MIMIC-IV Clinical Database Demo 2.2, 100 patients",
        "https://physionet.org/files/mimic-iv-demo/2.2/",
        "Open Database License 1.0",
    ),
    "eicu-demo": Publication(
        "eICU Collaborative Research Database Demo 2.0.1, 1,841 patients",
        "https://physionet.org/files/eicu-crd-demo/2.0.1/",
        "Open Database License 1.0",
    ),
}
"""What may be downloaded by anybody."""

_PHYSIONET = "a credentialed PhysioNet account with its data use agreement signed"
RESTRICTED = {
    "eicu": ("https://physionet.org/content/eicu-crd/", _PHYSIONET),
    "mimic": ("https://physionet.org/content/mimiciv/", _PHYSIONET),
    "mimic-iv": ("https://physionet.org/content/mimiciv/", _PHYSIONET),
    "mimic-cxr": ("https://physionet.org/content/mimic-cxr/", _PHYSIONET),
    "mimic-cxr-jpg": ("https://physionet.org/content/mimic-cxr-jpg/", _PHYSIONET),
    "mimic-iv-note": ("https://physionet.org/content/mimic-iv-note/", _PHYSIONET),
    "tadpole": ("https://tadpole.grand-challenge.org/", "an ADNI account with its data use agreement accepted"),
    "adni": ("https://adni.loni.usc.edu/", "an ADNI account with its data use agreement accepted"),
}
"""What only a person may download, and where: name -> (address, what is needed)."""


def publication(name: str) -> Publication:
    """The open data set of a name.

    Raises:
        UserError: one that needs credentials, or none at all.
    """
    if name in RESTRICTED:
        address, needed = RESTRICTED[name]
        raise UserError(f"fetch: {name} is not open: download it yourself from {address} with {needed}")
    if name not in OPEN:
        raise UserError(f"fetch: '{name}' is not known{suggest(name, [*OPEN, *RESTRICTED])}")
    return OPEN[name]


@dataclass(frozen=True)
class Fetched:
    """What lies in the folder now, every file as published.

    Attributes:
        files: all of them.
        downloaded: those that were not there before.
    """

    files: list[Path]
    downloaded: list[Path]


def fetch(
    name: str,
    out: Path,
    *,
    address: str | None = None,
    pause: float = 1.0,
    on_progress: Progress = lambda done, total: None,
) -> Fetched:
    """Downloads an open data set, or what is lacking of it.

    Args:
        name: of `OPEN`.
        out: its folder, which may hold an earlier, unfinished download.
        address: of a mirror with the same files and list.
        pause: seconds before the first new try after a failure, doubled with each.
        on_progress: called with (files done, files in all).

    Raises:
        UserError: a name that is not open, an address that is none, no connection, or files that are not what their
            publisher lists.
    """
    found = publication(name)
    source = _Source(_folder(address or found.address), pause)
    try:
        out.mkdir(parents=True, exist_ok=True)
        listed = source.sums()
        downloaded = []
        for done, (place, digest) in enumerate(listed.items()):
            on_progress(done, len(listed))
            target = out / place
            if not target.is_file() or _sha256(target) != digest:
                target.parent.mkdir(parents=True, exist_ok=True)
                source.download(place, digest, target)
                downloaded.append(target)
        on_progress(len(listed), len(listed))
        (out / SUMS).write_text("".join(f"{digest} {place}\n" for place, digest in listed.items()), encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out: {out}: {error.strerror}; make room, or name another folder") from None
    return Fetched([out / place for place in listed], downloaded)


def _folder(address: str) -> str:
    """The address with `/` at its end; raises UserError where it is none of a web server."""
    try:
        parts = urlsplit(address)
        web = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        web = False
    if not web:
        raise UserError(f"--from: {address}: give an address that begins with https:// or http://, or leave it out")
    return address.rstrip("/") + "/"


class _Unfinished(Exception):
    """A connection that failed or ended early; the message says why."""


@dataclass(frozen=True)
class _Source:
    """The folder of a publisher.

    Attributes:
        base: its address, ending in `/`.
        pause: as in `fetch`.
    """

    base: str
    pause: float

    def sums(self) -> dict[str, str]:
        """The list of checksums: place inside the folder -> sha256.

        Raises:
            UserError: it cannot be had, or names places outside the folder.
        """
        content = bytearray()

        def take() -> None:
            with self._opened(SUMS, 0) as response:
                content[:] = response.read(_LIST_BYTES)

        self._insist(SUMS, take, lambda: 0)
        listed = parse_sums(content.decode("utf-8", errors="replace"))
        if not listed:
            raise UserError(f"{self.base}{SUMS}: holds no checksums (a log-in page?); try again later")
        for place in listed:
            if place.startswith("/") or "\\" in place or ".." in PurePosixPath(place).parts:
                raise UserError(f"{self.base}{SUMS}: names '{place[:80]}', outside the folder; do not use this address")
        return listed

    def download(self, place: str, digest: str, target: Path) -> None:
        """A file, by its place, under its name once it is what it should be.

        Raises:
            UserError: no connection, another process at it, or twice another content than was listed.
        """
        partial = target.with_name(f"{target.name}.partial")
        with partial.open("ab") as file:
            _lock(file, partial)
            for attempt in ("what is lacking", "all of it"):
                if attempt == "all of it":
                    file.truncate(0)
                self._insist(place, lambda: self._append(place, file), lambda: file.seek(0, os.SEEK_END))
                if _sha256(partial) == digest:
                    partial.replace(target)
                    return
            partial.unlink()
        raise UserError(f"{self.base}{place}: is not what {SUMS} says (sha256 differs); try again later")

    def _append(self, place: str, file: BinaryIO) -> None:
        """Downloads what is lacking of a file.

        Raises:
            _Unfinished: less came than was promised.
        """
        start = file.seek(0, os.SEEK_END)
        with self._opened(place, start) as response:
            if response.status == _NOTHING_BEYOND:  # the checksum tells whether what is there is right
                return
            if start and response.status != _A_PART:  # a server without ranges gives the whole
                file.truncate(0)
            promised, came = response.headers.get("Content-Length"), 0
            while piece := response.read(_PIECE):
                file.write(piece)
                came += len(piece)
            file.flush()
        if promised is not None and came < int(promised):
            raise _Unfinished("the connection was cut")

    def _insist(self, place: str, act: Callable[[], None], size: Callable[[], int]) -> None:
        """Acts until it works, or fails so many times in a row without adding to the size.

        Raises:
            UserError: no connection, or a file that the publisher does not have.
        """
        failures = 0
        while True:
            before = size()
            try:
                act()
                return
            except _Unfinished as error:
                failures = 1 if size() > before else failures + 1
                if failures == _TRIES:
                    raise UserError(
                        f"{self.base}{place}: {error}, {_TRIES} times; what came is kept: the same command goes on"
                    ) from None
            time.sleep(self.pause * 2 ** (failures - 1))

    @contextmanager
    def _opened(self, place: str, start: int) -> Iterator[http.client.HTTPResponse]:
        """The answer to a request for the bytes of a file from `start`.

        Raises:
            UserError: the publisher does not have it, or does not give it.
            _Unfinished: a failure that may pass.
        """
        address = self.base + quote(place)
        headers = {"User-Agent": "ovo-clinic", "Accept-Encoding": "identity"}
        if start:
            headers["Range"] = f"bytes={start}-"
        try:
            with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=_TIMEOUT) as response:
                if (urlsplit(self.base).scheme, urlsplit(response.url).scheme) == ("https", "http"):
                    raise UserError(f"{address}: leads to {response.url}, which is not encrypted; do not use it")
                yield response
        except urllib.error.HTTPError as error:
            if error.code == _NOTHING_BEYOND:
                yield cast(http.client.HTTPResponse, error)
            elif error.code < 500 and error.code not in (408, 429):
                raise UserError(f"{address}: answered {error.code} {error.reason}; see {self.base}") from None
            else:
                raise _Unfinished(f"answered {error.code} {error.reason}") from None
        except (urllib.error.URLError, http.client.HTTPException, ssl.SSLError, ConnectionError, TimeoutError) as error:
            raise _Unfinished(f"no connection ({getattr(error, 'reason', None) or error})") from None


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UserError(f"{path}: another download is at it; wait until it is over") from None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
