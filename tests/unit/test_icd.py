"""Groups of ICD codes: exact codes, versions, overrides and the fallback for newer codes."""

import polars as pl
import pytest

from ovo_clinic import icd, spec
from ovo_clinic.resources import load_pipeline

SEPTICEMIA, SHOCK = "Septicemia (except in labor)", "Shock"
CKD, RESPIRATORY = "Chronic kidney disease", "Respiratory failure; insufficiency; arrest (adult)"
FLUIDS = "Fluid and electrolyte disorders"
PNEUMONIA = "Pneumonia (except that caused by tuberculosis or sexually transmitted disease)"


class Diagnoses:
    """Stands for the raw files: only diagnoses."""

    def __init__(self, rows: list[tuple[int, str, int]]) -> None:
        self.frame = pl.DataFrame(rows, schema=["hadm_id", "icd_code", "icd_version"], orient="row")

    def read(self, table: str) -> pl.DataFrame:
        return self.frame


def labels(code: str, version: int, mapping: str = "corrected") -> set[str]:
    table = load_pipeline("mimic_cohort").phenotypes(
        Diagnoses([(1, code, version)]), spec.load("mimic")[0], mapping=mapping
    )
    assert table.height == 1 and table.width == 26
    return {name for name in table.columns[1:] if table[name][0] == 1}


@pytest.mark.parametrize(
    ("code", "version", "wanted"),
    [
        ("I10", 10, {"Essential hypertension"}),
        ("R6521", 10, {SEPTICEMIA, SHOCK}),
        ("N1831", 10, {CKD}),
        ("J9601", 10, {RESPIRATORY}),
        ("I4811", 10, {"Cardiac dysrhythmias"}),
        ("J1282", 10, {PNEUMONIA}),
        ("E780", 10, {"Disorders of lipid metabolism"}),
        ("K56699", 10, set()),
        ("0389", 9, {SEPTICEMIA}),
        ("389", 9, set()),
        ("0389", 10, set()),
        ("E871", 10, {FLUIDS}),
        ("E871", 9, set()),
        (" E871 ", 10, {FLUIDS}),
        ("5849", 9, {"Acute and unspecified renal failure"}),
        ("58499", 9, set()),
        ("I10", 9, set()),
        ("Z999", 10, set()),
    ],
)
def test_codes(code: str, version: int, wanted: set[str]) -> None:
    assert labels(code, version) == wanted


@pytest.mark.parametrize(
    ("code", "version", "wanted"),
    [
        ("J9601", 10, set()),
        ("R6521", 10, {SHOCK}),
        ("N1831", 10, set()),
        ("K56699", 10, {"Gastrointestinal hemorrhage"}),
    ],
)
def test_the_list_of_medfuse(code: str, version: int, wanted: set[str]) -> None:
    assert labels(code, version, "medfuse") == wanted


def test_medfuse_takes_no_notice_of_the_version() -> None:
    assert labels("I10", 9, "medfuse") == labels("I10", 10, "medfuse") == {"Essential hypertension"}


def test_the_fallback() -> None:
    listed = icd.CodeList.of(
        [("A10", "a"), ("B111", "b"), ("B112", "b"), ("C11", "a"), ("C12", "b")], [("A1099", "")], True
    )
    wanted = {"A10": {"a"}, "A1055": {"a"}, "A10990": set(), "B11": {"b"}, "C1": set(), "B2": set(), "A1": {"a"}}
    # A1 has two mapped extensions, A10 with a label and A1099 without: not one and the same set.
    assert {code: set(listed.labels_of(code)) for code in wanted} == wanted | {"A1": set()}


def test_an_admission_without_a_listed_code_has_no_label_and_keeps_its_row() -> None:
    diagnoses = pl.DataFrame({"hadm_id": [2, 1, 1], "icd_code": ["x", "a", "b"], "icd_version": [9, 9, None]})
    table = icd.label_table(diagnoses, {9: icd.CodeList.of([("a", "L"), ("a", "M")])}, ["M", "N", "L"])
    assert table.rows() == [(1, 1, 0, 1), (2, 0, 0, 0)]
