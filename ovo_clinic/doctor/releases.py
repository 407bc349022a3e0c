"""Which published release raw files are, by the numbers of their rows."""

from collections.abc import Mapping

from ovo_clinic.doctor.check import Check

Rows = Mapping[str, int]


def release_checks(releases: Mapping[str, Rows], rows: Rows, files: Mapping[str, str]) -> list[Check]:
    """The release that most tables have the rows of, and the tables that do not; of no release, that it is none.

    Args:
        releases: name -> table -> rows as published.
        rows: counted, by table.
        files: of each table, for messages.
    """
    comparable = {name: {table: rows[table] for table in known if table in rows} for name, known in releases.items()}
    agreeing = {
        name: [table for table, count in counted.items() if count == releases[name][table]]
        for name, counted in comparable.items()
    }
    name = max(agreeing, key=lambda known: len(agreeing[known]), default="")
    if not any(comparable.values()):
        return []
    if not agreeing[name]:
        return [
            Check("note", "release", "the numbers of rows are of no release known here (made-up, cut down or newer?)")
        ]
    checks = [Check("ok", "release", f"{name}, by the rows of {', '.join(agreeing[name])}")]
    for table in comparable[name]:
        if table not in agreeing[name]:
            told = f"{rows[table]:,} rows where {name} has {releases[name][table]:,}; copy or download the file again"
            checks.append(Check("wrong", files[table], told))
    return checks
