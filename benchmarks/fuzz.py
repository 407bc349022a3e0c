"""Random damage to csv and DICOM files: every reader should read them or refuse them in one line.

    python benchmarks/fuzz.py --minutes 10

Prints how many inputs each reader was given, how many it refused and accepted, and every traceback with what brings it
about again; exit code 1 if there is one. `--keep DIR` keeps the inputs that led to a traceback.
"""

import argparse
import gzip
import random
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ovo_clinic import dicom, images, resources, split_lists
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.spec import TableSpec
from ovo_clinic.synthetic.mimic_image_files import ImageFile, write_dicom

Reader = Callable[[Path], bool]
"""Reads a file: True = accepted, False = skipped with a reason; a UserError is a refusal."""

ROWS = 60
COLUMNS = {"id": "integer", "value": "number", "note": "text"}
TABLES = {"table": TableSpec.model_validate({"file": "table", "columns": COLUMNS, "unique": "id"})}
TOKENS = (
    *(b'"', b'""', b",", b";", b"\t", b"\n", b"\r", b"\r\n", b"\n\n", b"\0", b"\x1a", b"\xef\xbb\xbf", b"\xff\xfe"),
    *(b"\xe9", b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"NaN", b"-inf", b"1e999", b"-0", b"1.0", b"0x1F", b"1_000"),
    *(
        b"99999999999999999999",
        b"\xc2\xa0",
        b"\xe2\x80\xa8",
        b"<html>",
        b"PK\x03\x04",
        b"\x1f\x8b",
        b": ",
        b"- ",
        b"&a ",
    ),
)
LONG = (b"x" * 70_000, b"," * 5_000, b'"' * 140_001, b"9" * 5_000, b"\n" * 3_000, b"[" * 300)


@dataclass(frozen=True)
class Target:
    """What is damaged, and what reads it.

    Attributes:
        name: of the file that is written, whose ending may matter.
        seeds: undamaged contents.
        read: the reader.
    """

    name: str
    seeds: tuple[bytes, ...]
    read: Reader


@dataclass
class Report:
    """What came of the inputs.

    Attributes:
        counts: (target, `refused`, `accepted` or `traceback`) -> inputs.
        tracebacks: one text for each kind of traceback.
        slowest: seconds of the slowest input.
    """

    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    tracebacks: dict[str, str] = field(default_factory=dict)
    slowest: float = 0.0

    def lines(self) -> Iterator[str]:
        """A table, and the tracebacks."""
        outcomes = ("refused", "accepted", "traceback")
        yield f"{'reader':16}{'inputs':>10}" + "".join(f"{outcome:>12}" for outcome in outcomes)
        for name in dict.fromkeys(name for name, _ in self.counts):
            found = [self.counts[name, outcome] for outcome in outcomes]
            yield f"{name:16}{sum(found):10,}" + "".join(f"{count:12,}" for count in found)
        yield f"{self.counts.total():,} inputs, the slowest in {self.slowest:.2f} seconds"
        yield from self.tracebacks.values()


def targets(folder: Path) -> dict[str, Target]:
    """The readers, each with undamaged files; `folder` is for making them."""
    rows = "".join(f'{10 + n},{n / 7},"a ""note"", {n}"\n' if n % 3 else f"{10 + n},,\n" for n in range(ROWS))
    table = f"id,value,note\n{rows}".encode()
    floats = re.sub(rb"^(\d+)", rb"\1.0", table, flags=re.MULTILINE)
    lists = b"subject_id,split\n" + b"".join(f"{n},{'test' if n % 4 else 'train'}\n".encode() for n in range(ROWS))
    config = (resources.folder("configs") / "mimic_phenotyping_replica.yaml").read_bytes()
    return {
        "csv": Target("table.csv", (table, floats, table.replace(b"\n", b"\r\n")), read_table),
        "csv.gz": Target("table.csv.gz", (gzip.compress(table, mtime=0), table), read_table),
        "split list": Target("testset.csv", (lists,), read_list),
        "yaml": Target("config.yaml", (config,), read_config),
        "dicom": Target("image.dcm", tuple(x_rays(folder)), read_image),
    }


def x_rays(folder: Path) -> Iterator[bytes]:
    """DICOM files: grey, white = 0, run-length encoded, in colour."""
    from pydicom import dcmread
    from pydicom.uid import RLELossless

    path = folder / "x-ray"
    picture = np.random.default_rng(0).random((24, 20)).astype(np.float32)
    for number in (0, 4):
        write_dicom(path, picture, ImageFile(1, 2, number, "AP", "CHEST", "21500301", "101500"))
        yield path.read_bytes()
    file = dcmread(path)
    file.compress(RLELossless)
    file.save_as(path)
    yield path.read_bytes()
    colour = dcmread(path)
    colour.decompress()
    colour.PhotometricInterpretation, colour.SamplesPerPixel, colour.PlanarConfiguration = "RGB", 3, 0
    colour.BitsAllocated, colour.BitsStored, colour.HighBit = 8, 8, 7
    colour.PixelData = np.rint(picture * 255).astype(np.uint8)[..., None].repeat(3, axis=2).tobytes()
    colour.save_as(path)
    yield path.read_bytes()


def read_table(path: Path) -> bool:
    """As the pipelines read: the whole table, and one column of it."""
    raw = RawFolder({"": path.parent}, TABLES)
    raw.fingerprint()
    raw.collect(raw.scan("table").select("value"), "table")
    raw.read("table")
    return True


def read_list(path: Path) -> bool:
    """A published split."""
    split_lists.read([path])
    return True


def read_config(path: Path) -> bool:
    """A config, with its settings checked."""
    from ovo_clinic import experiment

    experiment.load(str(path)).resolved()
    return True


def read_image(path: Path) -> bool:
    """Header and picture."""
    dicom.read_headers([path])
    _, (reason,) = images.decode(images.Job((path,), 16, "crop"))
    return reason is None


def damaged(seed: bytes, source: random.Random) -> bytes:
    """The content with one to four things wrong."""
    data = seed
    for _ in range(source.choice((1, 1, 2, 4))):
        data = source.choice(DAMAGES)(data, source)
    return data


def _place(data: bytes, source: random.Random) -> tuple[int, int]:
    """A short stretch, in half of the cases near the beginning, where headers are."""
    start = source.randrange(min(len(data), 400) if source.random() < 0.5 else len(data)) if data else 0
    return start, min(len(data), start + source.choice((1, 1, 2, 4, 16, 64, 400)))


def _flip(data: bytes, source: random.Random) -> bytes:
    start, _ = _place(data, source)
    return data[:start] + bytes([data[start] ^ (1 << source.randrange(8))]) + data[start + 1 :] if data else data


def _noise(data: bytes, source: random.Random) -> bytes:
    start, end = _place(data, source)
    return data[:start] + source.randbytes(end - start) + data[end:]


def _delete(data: bytes, source: random.Random) -> bytes:
    start, end = _place(data, source)
    return data[:start] + data[end:]


def _repeat(data: bytes, source: random.Random) -> bytes:
    start, end = _place(data, source)
    return data[:end] + data[start:end] * source.choice((1, 2, 50)) + data[end:]


def _insert(data: bytes, source: random.Random) -> bytes:
    start, _ = _place(data, source)
    return data[:start] + source.choice(LONG if source.random() < 0.05 else TOKENS) + data[start:]


def _overwrite(data: bytes, source: random.Random) -> bytes:
    start, _ = _place(data, source)
    token = source.choice(TOKENS)
    return data[:start] + token + data[start + len(token) :]


def _move(data: bytes, source: random.Random) -> bytes:
    start, end = _place(data, source)
    rest, other = data[:start] + data[end:], source.randrange(len(data) + 1)
    return rest[:other] + data[start:end] + rest[other:]


def _cut(data: bytes, source: random.Random) -> bytes:
    return data[: source.randrange(len(data) + 1)]


DAMAGES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(_flip, _noise, _delete, _repeat, _insert, _overwrite, _move, _cut),
)


def outcome(read: Reader, path: Path) -> str:
    """`accepted` or `refused`.

    Raises:
        BaseException: whatever else the reader raises, a panic inside polars (no Exception) among it.
    """
    try:
        return "accepted" if read(path) else "refused"
    except UserError as error:
        assert "\n" not in str(error), f"more than one line: {error}"
        return "refused"


def fuzz(chosen: Mapping[str, Target], seed: int, more: Callable[[int], bool], keep: Path | None = None) -> Report:
    """Damages files and has them read for as long as `more`, given the number of inputs so far, says so.

    Args:
        chosen: the readers, which take turns.
        seed: of all damage.
        more: whether to go on.
        keep: folder for inputs that led to a traceback.
    """
    source, report = random.Random(seed), Report()
    with tempfile.TemporaryDirectory() as name:
        while more(report.counts.total()):
            for called, target in chosen.items():
                path = Path(name) / target.name
                path.write_bytes(damaged(source.choice(target.seeds), source))
                start = time.perf_counter()
                try:
                    found = outcome(target.read, path)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:
                    found = "traceback"
                    frames = traceback.extract_tb(error.__traceback__)
                    kind = f"{called}: {type(error).__name__} in {frames[-1].name} ({frames[-1].filename})"
                    report.tracebacks.setdefault(kind, f"{kind}\n{''.join(traceback.format_exception(error))}")
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{report.counts.total()}-{target.name}").write_bytes(path.read_bytes())
                report.slowest = max(report.slowest, time.perf_counter() - start)
                report.counts[called, found] += 1
                path.unlink()
    return report


def main() -> None:
    """Damages, reads and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=None, help="default: another one each time, which is printed")
    parser.add_argument("--keep", type=Path, default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    end = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        chosen = targets(Path(folder))
    report = fuzz(chosen, seed, lambda _: time.monotonic() < end, given.keep)
    print("\n".join(report.lines()))
    sys.exit(1 if report.tracebacks else 0)


if __name__ == "__main__":
    main()
