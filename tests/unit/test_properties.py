"""Parsers on texts of any kind, and splits of any cohort, against rules written out in plain Python."""

import csv
import gzip
import io
import math
import tempfile
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ovo_clinic import binning, dicom, icd, resources
from ovo_clinic.commands.values import names, shares, size
from ovo_clinic.errors import UserError
from ovo_clinic.raw import RawFolder
from ovo_clinic.resources import load_pipeline
from ovo_clinic.spec import SplitSpec, TableSpec
from ovo_clinic.splitting import SPLITS, split_units

QUICK = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)

# ---------------------------------------------------------------- csv files

COLUMNS = {"id": "integer", "value": "number", "note": "text"}
TABLES = {"t": TableSpec.model_validate({"file": "t", "columns": COLUMNS})}
ROWS = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False)),
        # A carriage return outside quotes ends a row for some programs and not for others.
        st.one_of(st.none(), TEXT.filter(lambda text: text != "" and not {"\ufffd", "\r"} & set(text))),
    ),
    min_size=1,
    max_size=8,
)


@QUICK
@given(
    ROWS, st.permutations(list(COLUMNS)), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.booleans()
)
def test_what_python_writes_as_csv_is_read_to_the_last_bit(
    rows: list[tuple[int, float | None, str | None]], order: list[str], end: str, bom: bool, packed: bool, quoted: bool
) -> None:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL)
    places = [list(COLUMNS).index(name) for name in order]
    writer.writerow([name.upper() for name in order])
    for row in rows:
        cells = [str(row[0]), "" if row[1] is None else repr(row[1]), row[2] or ""]
        writer.writerow([cells[place] for place in places])
    data = text.getvalue().encode("utf-8-sig" if bom else "utf-8")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("t.csv.gz" if packed else "t.csv")
        path.write_bytes(gzip.compress(data) if packed else data)
        assert RawFolder({"": Path(folder)}, TABLES).read("t").rows() == rows


# ---------------------------------------------------------------- command line


@given(st.integers(1, 4000), st.sampled_from("KMGT"), st.sampled_from(["", "B", "iB"]), st.sampled_from(["", " "]))
def test_sizes_are_powers_of_1024(number: int, unit: str, ending: str, blank: str) -> None:
    power = {"K": 1, "M": 2, "G": 3, "T": 4}[unit]
    assert size(f"{number}{blank}{unit.lower()}{ending}") == number * 1024**power


@given(TEXT)
def test_a_size_is_a_number_of_bytes_or_a_mistake(text: str) -> None:
    try:
        found = size(text)
    except UserError as error:
        assert "--memory" in str(error)
    else:
        assert found is not None and 1 <= found < 2**63


@given(TEXT)
def test_shares_lie_from_0_to_1_or_are_a_mistake(text: str) -> None:
    try:
        found = shares(text)
    except UserError:
        return
    assert found and all(0 <= share <= 1 for share in found)


@given(st.lists(st.text("abc_", min_size=1, max_size=4)))
def test_names_are_what_was_joined(given_names: list[str]) -> None:
    assert names(" , ".join(given_names)) == given_names


@QUICK
@given(st.text(max_size=40))
def test_any_text_is_yaml_or_a_mistake(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(text, encoding="utf-8", errors="replace")
        try:
            assert isinstance(resources.read_yaml(path), dict)
        except UserError as error:
            assert "\n" not in str(error)


# ---------------------------------------------------------------- codes and times

CODES = st.text("A12", min_size=1, max_size=5)
LABELS = st.lists(st.tuples(CODES, st.sampled_from(["x", "y", ""])), max_size=12)


def labels_in_words(pairs: list[tuple[str, str]], code: str) -> set[str]:
    """Its own labels; else those of its longest listed beginning of three or more; else those that all longer share."""
    listed: dict[str, set[str]] = {}
    for known, label in pairs:
        listed.setdefault(known, set()).update({label} - {""})
    beginnings = [known for known in listed if code.startswith(known) and len(known) >= 3 or known == code]
    if beginnings:
        return listed[max(beginnings, key=len)]
    longer = [labels for known, labels in listed.items() if known.startswith(code)]
    return longer[0] if longer and all(labels == longer[0] for labels in longer) else set()


@given(LABELS, CODES)
def test_labels_of_codes(pairs: list[tuple[str, str]], code: str) -> None:
    assert set(icd.CodeList.of(pairs, fallback=True).labels_of(code)) == labels_in_words(pairs, code)
    exact = {label for known, label in pairs if known == code} - {""}
    assert set(icd.CodeList.of(pairs).labels_of(code)) == exact


MOMENTS = st.datetimes(datetime(2100, 1, 1), datetime(2210, 1, 1)).map(lambda moment: moment.replace(microsecond=0))


@given(MOMENTS, st.integers(0, 999))
def test_study_times_survive_the_loss_of_leading_zeros(moment: datetime, thousandths: int) -> None:
    clock = float(f"{moment:%H%M%S}") + thousandths / 1000
    frame = pl.DataFrame({"date": [int(f"{moment:%Y%m%d}")], "time": [f"{clock:.3f}"]})
    found = frame.select(load_pipeline("mimic_images").taken(pl.col("date"), pl.col("time"))).item()
    assert abs(found - moment - timedelta(milliseconds=thousandths)) < timedelta(milliseconds=1)


@given(st.one_of(TEXT, st.floats().map(str), st.integers().map(str)), st.one_of(TEXT, st.integers().map(str)))
def test_any_study_time_is_a_time_or_none(time: str, date: str) -> None:
    frame = pl.DataFrame({"date": [date], "time": [time]})
    found = frame.select(load_pipeline("mimic_images").taken(pl.col("date"), pl.col("time"))).item()
    assert found is None or isinstance(found, datetime)


@given(MOMENTS, st.timedeltas(timedelta(days=-20_000), timedelta(days=20_000)))
def test_seconds_since_admission(start: datetime, since: timedelta) -> None:
    moment = (start + since).replace(microsecond=0)
    frame = pl.DataFrame({"start": [start], "time": [f"{moment:%Y-%m-%d %H:%M:%S}"]})
    found = frame.select(load_pipeline("mimic_events").seconds_since(pl.col("time"), pl.col("start"))).item()
    assert found == (moment - start).total_seconds()


@given(TEXT, MOMENTS)
def test_a_text_that_is_no_time_has_no_seconds(text: str, start: datetime) -> None:
    frame = pl.DataFrame({"start": [start], "time": [text]})
    found = frame.select(load_pipeline("mimic_events").seconds_since(pl.col("time"), pl.col("start"))).item()
    assert found is None


# ---------------------------------------------------------------- DICOM headers


@QUICK
@given(date=TEXT, time=TEXT, view=TEXT)
def test_any_dicom_header_is_read_or_left(date: str, time: str, view: str) -> None:
    found = _header(date, time, view)
    if found is not None:
        assert found.date is None or 0 <= found.date <= 99_999_999
        assert found.time is None or 0 <= found.time < 1_000_000


@QUICK
@given(moment=MOMENTS, view=st.sampled_from(["AP", "PA", "LATERAL", ""]), dots=st.booleans())
def test_dicom_headers_say_when_and_how(moment: datetime, view: str, dots: bool) -> None:
    date, time = (f"{moment:%Y.%m.%d}", f"{moment:%H:%M:%S}") if dots else (f"{moment:%Y%m%d}", f"{moment:%H%M%S}")
    expected = dicom.Header(int(f"{moment:%Y%m%d}"), float(f"{moment:%H%M%S}"), view or None)
    assert _header(date, time, view) == expected


def _header(date: str, time: str, view: str) -> dicom.Header | None:
    """What is read of a file whose elements hold these bytes, valid or not."""
    values = {(0x08, 0x20, b"DA"): date, (0x08, 0x30, b"TM"): time, (0x18, 0x5101, b"CS"): view}
    data = b""
    for (group, element, kind), text in values.items():
        held = text.encode("latin-1", "replace")
        held += b" " * (len(held) % 2)
        tag = group.to_bytes(2, "little") + element.to_bytes(2, "little")
        data += tag + kind + len(held).to_bytes(2, "little") + held
    syntax = b"1.2.840.10008.1.2.1\0"
    meta = b"\x02\0\x10\0UI" + len(syntax).to_bytes(2, "little") + syntax
    start = b"\x02\0\0\0UL\x04\0" + len(meta).to_bytes(4, "little")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.dcm"
        path.write_bytes(bytes(128) + b"DICM" + start + meta + data)
        return dicom.read_headers([path])[0]


# ---------------------------------------------------------------- time steps

HOURS = st.floats(0, 500).map(lambda hours: round(hours, 3))


@given(st.lists(HOURS, min_size=1, max_size=20), st.sampled_from([0.5, 1.0, 2.0, 6.0]))
def test_a_time_lies_in_its_bin(hours: list[float], step: float) -> None:
    bins = binning.bin_of(np.array(hours), step)
    for hour, place in zip(hours, bins, strict=True):
        assert place == max(math.ceil(round(hour / step, 9)) - 1, 0)


@QUICK
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 5), HOURS), max_size=30), st.data())
def test_binning_does_not_depend_on_the_order_of_rows(
    drawn: list[tuple[int, int, int, float]], data: st.DataObject
) -> None:
    """Raw chart rows in any order: the same steps, and the last value of each."""
    channels = load_pipeline("mimic_channels")
    events = load_pipeline("mimic_events")
    from ovo_clinic import spec

    known = channels.Channels.of(spec.load("mimic")[0], medfuse=False)
    items = [220045, 220210, 220277, 223762]
    rows = [(unit, items[place], int(3600 * hour), None, 60.0 + value) for unit, place, value, hour in drawn]
    schema = {"unit": pl.UInt32, "itemid": pl.Int32, "seconds": pl.Int32, "text": pl.String, "number": pl.Float64}
    found = []
    for order in (rows, data.draw(st.permutations(rows))):
        frame = pl.DataFrame(order, schema=schema, orient="row")
        read, observed, counts = events.clean(frame, known, intubated_is_missing=False)
        found.append((*(part.tolist() for part in vars(read).values()), observed.tolist(), counts))
    assert found[0] == found[1]


# ---------------------------------------------------------------- splits


@st.composite
def cohorts(draw: st.DrawFn) -> pl.DataFrame:
    """30 to 120 patients of one to three units each."""
    people = draw(st.integers(30, 120))
    units = [draw(st.integers(1, 3)) for _ in range(people)]
    patients = np.repeat(np.arange(people), units)
    seed = draw(st.integers(0, 2**16))
    random = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "unit_id": random.permutation(patients.size),
            "patient_id": patients,
            "label": random.integers(0, 2, patients.size),
        }
    )


SHARES = st.sampled_from([(0.7, 0.1, 0.2), (0.5, 0.25, 0.25), (0.8, 0.1, 0.1), (0.34, 0.33, 0.33)])


@QUICK
@given(cohorts(), SHARES, st.integers(0, 99), st.booleans())
def test_splits_have_their_shares_and_cut_no_patient(
    cohort: pl.DataFrame, asked: tuple[float, float, float], seed: int, stratify: bool
) -> None:
    train, validation, test = asked
    spec = SplitSpec(train=train, validation=validation, test=test, seed=seed, stratify=stratify)
    parts = split_units(cohort, spec, ["label"], [])
    of_patient: dict[int, set[str]] = {}
    for patient, part in zip(cohort["patient_id"], parts, strict=True):
        of_patient.setdefault(patient, set()).add(part)
    assert all(len(found) == 1 for found in of_patient.values())
    for name, share in zip(SPLITS, asked, strict=True):
        count = sum(found == {name} for found in of_patient.values())
        assert abs(count - share * len(of_patient)) <= 2


@QUICK
@given(cohorts(), st.integers(0, 99), st.data())
def test_splits_do_not_depend_on_order_or_further_columns(cohort: pl.DataFrame, seed: int, data: st.DataObject) -> None:
    spec = SplitSpec(seed=seed)
    parts = dict(zip(cohort["unit_id"], split_units(cohort, spec, ["label"], []), strict=True))
    order = data.draw(st.permutations(range(cohort.height)))
    other = cohort[list(order)].with_columns(ward=pl.lit(3), age=pl.col("unit_id") * 0.5)
    assert parts == dict(zip(other["unit_id"], split_units(other, spec, ["label"], []), strict=True))


# ---------------------------------------------------------------- windows


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[tuple[int, str, float, float]]], pl.DataFrame]:
    """Prepares records of a made-up ward and gives their features, by unit."""
    from ovo_clinic.flat_options import Cohort, Summaries

    pipeline = load_pipeline("flat_files")
    from ovo_clinic.spec import DatasetSpec

    tables = {
        "stays": {"file": "stays", "columns": {"stay": "integer", "died": "integer"}},
        "labs": {"file": "labs", "columns": {"stay": "integer", "test": "text", "value": "number", "hour": "number"}},
    }
    task = {"w": {"title": "made up", "target": ["died"]}}
    about = {"name": "ward", "title": "ward", "pipeline": "flat_files", "modalities": {"labs": "labs"}}
    spec = DatasetSpec.model_validate({**about, "tables": tables, "tasks": task})
    statistics = ["last", "min", "max", "mean", "count"]
    named = {"table": "labs", "variable": "test", "value": "value", "time": "hour", "statistics": statistics}
    summaries = Summaries.model_validate({"kind": "summaries", **named})
    cohort = Cohort(table="stays", unit="stay", labels=["died"])

    def features(records: list[tuple[int, str, float, float]]) -> pl.DataFrame:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            pl.DataFrame({"stay": range(6), "died": [0, 1] * 3}).write_csv(folder / "stays.csv")
            frame = pl.DataFrame(records, schema=["stay", "test", "value", "hour"], orient="row")
            frame.write_csv(folder / "labs.csv", float_precision=6)
            raw = RawFolder({"": folder}, spec.tables)
            found = pipeline.tables(raw, spec, cohort=cohort, modalities={"labs": summaries}, prediction_hours=24)
        frame: pl.DataFrame = found.modalities["labs"].frame.sort("unit_id", "variable")
        return frame

    return features


RECORDS = st.tuples(st.integers(0, 5), st.sampled_from(["sodium", "ph"]), st.floats(0, 200).map(lambda v: round(v, 2)))
BEFORE = st.lists(st.tuples(RECORDS, st.floats(-9, 23.9).map(lambda hour: round(hour, 2))), min_size=1, max_size=20)
AFTER = st.lists(st.tuples(RECORDS, st.floats(24, 1e6).map(lambda hour: round(hour, 2))), max_size=20)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(before=BEFORE, after=AFTER, data=st.data())
def test_a_record_at_or_after_the_prediction_changes_no_feature(
    ward: Callable[..., pl.DataFrame], before: list[tuple], after: list[tuple], data: st.DataObject
) -> None:
    known = [(*record, hour) for record, hour in before]
    later = [(*record, hour) for record, hour in [*after, ((0, "sodium", 999.0), 24.0)]]
    mixed = data.draw(st.permutations([*known, *later]))
    assert ward(list(mixed)).equals(ward(known))
