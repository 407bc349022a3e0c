"""Published lists decide the split; what is on none of them is neither trained on nor evaluated."""

import hashlib
from pathlib import Path

import polars as pl
import pytest

from ovo_clinic import split_lists
from ovo_clinic.errors import UserError

# MedFuse's two files: patients 1 to 8 are on the first, those that do not test on the second too, but for 8.
TEST_LIST = "".join(f"{patient},{int(patient in (1, 2))}\n" for patient in range(1, 9))
VALIDATION_LIST = "".join(f"{patient},{int(patient == 3)}\n" for patient in range(3, 8))
COHORT = pl.DataFrame({"unit_id": range(20), "patient_id": [1 + unit % 10 for unit in range(20)]})
BY_PATIENT = ["test", "test", "validation", *["train"] * 5, "unlisted", "unlisted"]


def write(folder: Path, **files: str) -> list[Path]:
    paths = [folder / f"{name}.csv" for name in files]
    for path, content in zip(paths, files.values(), strict=True):
        path.write_text(content)
    return paths


def test_flags_speak_of_the_part_in_the_file_name(tmp_path: Path) -> None:
    lists = split_lists.read(write(tmp_path, testset_iv=TEST_LIST, valset_iv=VALIDATION_LIST))
    assert split_lists.split_by_lists(COHORT, lists).tolist() == BY_PATIENT * 2
    assert [found.sha256 for found in lists] == [
        hashlib.sha256(text.encode()).hexdigest() for text in (TEST_LIST, VALIDATION_LIST)
    ]
    assert split_lists.found_notes(COHORT.filter(pl.col("patient_id") != 2), lists) == {
        "patients of split list testset_iv.csv": "7 of 8 in cohort",
        "patients of split list valset_iv.csv": "5 of 5 in cohort",
    }


def test_parts_by_name_with_a_header_and_text_ids(tmp_path: Path) -> None:
    rows = [f"{patient},{part}" for patient, part in enumerate(BY_PATIENT[:8], start=1)]
    lists = split_lists.read(write(tmp_path, mine="\n".join(["subject_id,split", *rows]).replace("validation", "VAL")))
    cohort = COHORT.with_columns(pl.col("patient_id").cast(pl.String))
    assert split_lists.split_by_lists(cohort, lists).tolist() == BY_PATIENT * 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mine": "1,0\n"}, "line 1: a 0 or 1 needs a file name that says of which part"),
        ({"testset": "1,0\n2,3\n"}, "line 2: its second cell is no part; valid: train, validation, test, or 0 and 1"),
        ({"testset": "1\n"}, "line 1: should hold a patient and a part"),
        ({"testset": "1,0\n1,1\n"}, "line 2: its patient stands in the list with another part"),
        ({"testset": ""}, "holds no row"),
        ({"testset": "1,1\n", "valset": "1,1\n"}, "a patient is of 'validation' and, on another list, 'test'"),
        ({"testset": TEST_LIST}, "no unit of the cohort is of the part 'validation'"),
        ({"a": "99,train\n98,test\n"}, "no unit of the cohort is of the part 'train'"),
    ],
)
def test_mistakes(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match="^--split-lists: [^\n]*$") as caught:
        split_lists.split_by_lists(COHORT, split_lists.read(write(tmp_path, **files)))
    assert message in str(caught.value)


def test_an_identifier_that_crosses_parts_is_a_mistake(tmp_path: Path) -> None:
    lists = split_lists.read(write(tmp_path, mine="1,train\n2,validation\n3,test\n4,test\n"))
    cohort = pl.DataFrame({"unit_id": range(5), "patient_id": [1, 2, 3, 4, 5], "stay": [1, 2, 3, 3, 1]})
    # Patients 3 and 4 share a stay in one part, and patient 5, who shares the first one's, is on no list.
    assert split_lists.split_by_lists(cohort, lists, ["stay"]).tolist() == [
        "train",
        "validation",
        "test",
        "test",
        "unlisted",
    ]
    shared = cohort.with_columns(stay=pl.Series([1, 2, 3, 2, None]))
    with pytest.raises(UserError, match=r"^--split-lists: 1 value\(s\) of stay belong to patients of different parts"):
        split_lists.split_by_lists(shared, lists, ["stay"])


def test_an_unreadable_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere.csv cannot be read"):
        split_lists.read([tmp_path / "nowhere.csv"])


def test_two_lists_of_one_name_are_refused(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    first, second = (write(tmp_path / folder, mine=f"{patient},test\n")[0] for patient, folder in enumerate("ab"))
    with pytest.raises(UserError, match=r"^--split-lists: two lists are called mine.csv, .*; rename one$"):
        split_lists.read([first, second])
