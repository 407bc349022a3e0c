"""Lists of checksums as publishers put them beside their files."""

from pathlib import Path

SUMS = "SHA256SUMS.txt"
"""How PhysioNet calls the list of the checksums of a download."""


def published_sums(folder: Path) -> dict[str, str]:
    """sha256 of files by their place in a folder, by the list that came with them; nothing where none did."""
    file = folder / SUMS
    return parse_sums(file.read_text(encoding="utf-8", errors="replace")) if file.is_file() else {}


def parse_sums(text: str) -> dict[str, str]:
    """Path -> sha256 of the lines `sha256 path` of a list."""
    found = {}
    for line in text.splitlines():
        digest, _, path = line.strip().partition(" ")
        if len(digest) == 64 and path.strip():
            found[path.strip().lstrip("*").removeprefix("./")] = digest.lower()
    return found
