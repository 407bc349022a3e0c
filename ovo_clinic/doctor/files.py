"""Looks at the raw files of a data set: all there, readable, whole, of one release."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ovo_clinic import raw, raw_folders
from ovo_clinic.checksums import SUMS, published_sums
from ovo_clinic.doctor.check import Check, in_bytes
from ovo_clinic.doctor.contents import Contents, read_through
from ovo_clinic.doctor.gzip_samples import sampled_state
from ovo_clinic.doctor.releases import release_checks
from ovo_clinic.errors import UserError
from ovo_clinic.raw_files import AGAIN, RawFile
from ovo_clinic.spec import DatasetSpec

_CHEAP = 32 << 20  # bytes of a packed file that is read whole without being asked to
_UNPACKED = 8  # times as many of one that is not packed
_VERSION = re.compile(r"v?\d+\.\d+(\.\d+)?")
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class RawChecks:
    """What was found.

    Attributes:
        checks: line by line.
        files: the tables' files that are there.
        rows: of the tables that were counted.
    """

    checks: list[Check]
    files: Mapping[str, Path]
    rows: Mapping[str, int]


def raw_checks(spec: DatasetSpec, given: raw_folders.Given, full: bool, on_progress: Progress) -> RawChecks:
    """Looks at every table of a data set.

    Args:
        spec: of the data set.
        given: raw folders, as for `prepare`.
        full: also read large files to their end.
        on_progress: called with (tables done, tables in all).

    Raises:
        UserError: a folder that does not exist, or a source that the data set does not have.
    """
    checks, located = _located(spec, raw_folders.by_source(given, spec.tables))
    looked_at: dict[str, _Table] = {}
    names = [name for name, table in spec.tables.items() if table.source in located]
    for done, name in enumerate(names):
        on_progress(done, len(names))
        table = _look(spec, name, located, full)
        checks += table.checks
        looked_at[name] = table
    on_progress(len(names), len(names))
    files = {name: table.file for name, table in looked_at.items() if table.file is not None}
    rows = {name: table.contents.rows for name, table in looked_at.items() if table.contents is not None}
    shown = {name: path.name for name, path in files.items()}
    for source in located:
        own = {n: known for n, known in spec.releases.items() if {spec.tables[t].source for t in known} == {source}}
        checks += release_checks(own, rows, shown)
    return RawChecks(checks, files, rows)


def _located(spec: DatasetSpec, folders: Mapping[str, Path]) -> tuple[list[Check], dict[str, Path]]:
    """The folder of each download that is there."""
    checks: list[Check] = []
    located: dict[str, Path] = {}
    for source in dict.fromkeys(table.source for table in spec.tables.values()):
        own = {name: table for name, table in spec.tables.items() if table.source == source}
        called = f"download '{source}'" if source else "raw folder"
        try:
            folder = raw_folders.locate(folders, own)[source]
        except UserError as error:
            checks.append(Check("wrong", called, str(error)))
            continue
        if folder is None:
            checks.append(Check("note", called, f"not there; what comes of it is left out (--raw {source}=DIR)"))
            continue
        version = next((part for part in reversed(folder.resolve().parts) if _VERSION.fullmatch(part)), None)
        checks.append(Check("ok", called, f"{folder}" + (f", in a folder of version {version}" if version else "")))
        located[source] = folder
    return checks, located


@dataclass(frozen=True)
class _Table:
    checks: list[Check]
    file: Path | None = None
    contents: Contents | None = None


def _look(spec: DatasetSpec, name: str, located: Mapping[str, Path], full: bool) -> _Table:
    table = spec.tables[name]
    try:
        found = raw.open_table(name, spec.tables, located)
    except UserError as error:
        return _Table([Check("wrong", table.file, str(error))])
    if found is None:
        return _Table([Check("note", table.file, "not there, and not needed")])
    path, size = found.path, found.path.stat().st_size
    columns = _columns(found, len(table.all_columns))
    try:
        if full or size <= (_CHEAP if path.suffix == ".gz" else _UNPACKED * _CHEAP):
            contents = read_through(path)
            checks = [Check("ok", path.name, f"{columns}, {contents.rows:,} rows, {in_bytes(size)}, read to its end")]
            checks += _published(path, contents, located[table.source])
            return _Table(checks, path, contents)
        _check_samples(path)
    except UserError as error:
        return _Table([Check("wrong", path.name, str(error))], path)
    told = f"{columns}, {in_bytes(size)}, sampled at start, middle and end; rows not counted (--full does)"
    return _Table([Check("ok", path.name, told)], path)


def _columns(found: RawFile, declared: int) -> str:
    lacking = declared - len(found.headers)
    return f"{len(found.headers)} columns" + (f" ({lacking} optional ones are not there)" if lacking else "")


def _check_samples(path: Path) -> None:
    """Looks at three places of a large file.

    Raises:
        UserError: it is cut off or damaged.
    """
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        for place in (0, path.stat().st_size // 2, max(0, path.stat().st_size - (1 << 16))):
            file.seek(place)
            if not any(file.read(1 << 16)):
                raise UserError(f"{path}: holds zeros in place of data (an unfinished download?); {AGAIN}")
    if not packed:
        return
    state = sampled_state(path)
    if state == "cut off":
        raise UserError(f"{path}: is cut off; {AGAIN}")
    if state == "damaged":
        read_through(path)  # packed in an unusual way, perhaps: the whole file decides


def _published(path: Path, contents: Contents, folder: Path) -> list[Check]:
    """Whether the file is what its publisher's list of checksums says, where that was downloaded too."""
    expected = published_sums(folder).get(path.relative_to(folder).as_posix())
    if expected is None or expected == contents.sha256:
        return []
    return [Check("wrong", path.name, f"is not the published file ({SUMS} of {folder}); {AGAIN}")]
