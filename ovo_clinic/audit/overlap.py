"""Checks for people, admissions and image files that stand in two parts of the split."""

from ovo_clinic.audit.finding import Finding, Remarks
from ovo_clinic.audit.subject import Subject

_WHY = "the model meets in the test part whom it saw in training, and its scores are too good"


def people_in_two_parts(subject: Subject) -> Remarks:
    """Values of patient_id, of the column that is split by, and of every identifier of the task."""
    split = subject.prepared.manifest["split"]
    columns = dict.fromkeys(["patient_id", *([] if split.get("lists") else [split["by"]]), *subject.task.identifiers])
    for column in columns:
        if crossing := subject.crossing(subject.prepared.cohort[column]):
            yield Finding(
                what=f"{crossing} values of {column} stand in more than one part of the split",
                where=f"cohort: {column}",
                count=crossing,
                why=_WHY,
                mend="prepare the data anew, split by whole patients, with the column among the task's `identifiers`",
                declared=subject.cut_apart,
            )


def images_in_two_parts(subject: Subject) -> Remarks:
    """Files, and the identifiers that the pipeline keeps of each image (study, subject)."""
    units = subject.prepared.cohort.select("unit_id")
    for name in subject.of_kind("image"):
        index = units.join(subject.prepared.image_index(name), on="unit_id", how="left", maintain_order="left")
        for column in (column for column in index.columns if column == "file" or column.endswith("_id")):
            if column != "unit_id" and (crossing := subject.crossing(index[column])):
                yield Finding(
                    what=f"{crossing} values of {column} belong to images of units in more than one part of the split",
                    where=f"{name}: {column}",
                    count=crossing,
                    why=_WHY,
                    mend="give each image to one unit, or keep the units that share one together: put what they share "
                    "into the cohort and name it in the task's `identifiers`",
                    declared=subject.cut_apart,
                )
