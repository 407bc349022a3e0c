"""Finds the downloads of a data set under the folders that a user gives, whatever they are nested in.

A download is the folder that holds its tables, in itself or in the sub-folders that the spec names: `mimiciv/2.2`, with
tables in `hosp` and `icu`. One folder may hold several downloads, and each may lie in a folder of its version.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ovo_clinic.errors import UserError
from ovo_clinic.spec import TableSpec

Given = str | Path | Mapping[str, str | Path]
"""Raw folders as a user gives them: one, or one for each source."""

_SUFFIXES = (".csv.gz", ".csv", ".parquet")
_LEVELS = 3  # the given folder, the download's, its version's
_MOST_FOLDERS = 50  # a folder of more holds records, not downloads


def locate(folders: Mapping[str, Path], tables: Mapping[str, TableSpec]) -> dict[str, Path | None]:
    """The folder of each source, None where it is absent and none of its tables is needed.

    Args:
        folders: as given, by source; "" stands for every source that is not named.
        tables: of the data set.

    Raises:
        UserError: no folder for a source that is needed, a folder that does not exist, or two downloads of one source.
    """
    sources = dict.fromkeys(table.source for table in tables.values())
    of_source = {name: [table for table in tables.values() if table.source == name] for name in sources}
    return {source: _folder(source, folders, of_source[source]) for source in sources}


def by_source(given: Given, tables: Mapping[str, TableSpec]) -> dict[str, Path]:
    """The folders by source, "" for a single one.

    Raises:
        UserError: a source that the data set does not have, or a folder that does not exist.
    """
    folders = (
        {source: Path(folder) for source, folder in given.items()} if isinstance(given, Mapping) else {"": Path(given)}
    )
    sources = sorted({table.source for table in tables.values() if table.source})
    for source, folder in folders.items():
        if source and source not in sources:
            valid = f"valid: {', '.join(sources)}" if sources else "the data set has one; give --raw DIR"
            raise UserError(f"--raw: there is no source '{source}'; {valid}")
        if not folder.is_dir():
            raise UserError(f"--raw: {folder} is not a folder")
    return folders


def file_in(base: Path, table: TableSpec) -> Path | None:
    """The table's file in a download; names match in any case.

    Raises:
        UserError: a folder holds it in more than one form, of which one may be old.
    """
    names = [f"{table.file}{suffix}".lower() for suffix in _SUFFIXES]
    for folder in folders_of(base, table):
        found = sorted(path for path in folder.iterdir() if path.name.lower() in names)
        if len(found) > 1:
            raise UserError(
                f"{folder}: holds both {found[0].name} and {found[1].name}, of which one may be old; remove or move one"
            )
        if found:
            return found[0]
    return None


def folders_of(base: Path, table: TableSpec) -> list[Path]:
    """The folders of a download that may hold the table, in the order in which they are looked in."""
    return [folder for name in (*table.folders, ".") if (folder := base / name).is_dir()]


def _folder(source: str, folders: Mapping[str, Path], tables: Sequence[TableSpec]) -> Path | None:
    given = folders.get(source, folders.get(""))
    needed = any(table.required for table in tables)
    if given is None:
        if needed:
            raise UserError(f"--raw: no folder is given for source '{source}'; give --raw {source}=DIR")
        return None
    if not given.is_dir():
        raise UserError(f"--raw: {given} is not a folder; give the folder of the csv or csv.gz files")
    found = _search(source, given, tables)
    # A download of images alone has no table to know it by.
    by_name = given if source in folders or needed else given / source
    return found or (by_name if by_name.is_dir() else None)


def _search(source: str, given: Path, tables: Sequence[TableSpec]) -> Path | None:
    level = [given]
    for _ in range(_LEVELS):
        found = [folder for folder in level if any(file_in(folder, table) for table in tables)]
        if len(found) > 1:
            of, option = (f" of '{source}'", f"{source}=DIR") if source else ("", "DIR")
            raise UserError(
                f"--raw: {given} holds more than one download{of}: {found[0]}, {found[1]}; name the one that is meant: "
                f"--raw {option}"
            )
        if found:
            return found[0]
        level = [child for folder in level for child in _sub_folders(folder)]
    return None


def _sub_folders(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return found if len(found) <= _MOST_FOLDERS else []
