"""Printing what a study of encoders, or of preconditioned models, tells beside the scores."""

from typing import TYPE_CHECKING

from ovo_clinic.terminal import out, print_table

if TYPE_CHECKING:
    from ovo_clinic.verbs.study import Study


def print_encoders(study: "Study") -> None:
    """Prints the tables of a study's encoders, if any."""
    from ovo_clinic import encoder_tables

    for name, frame in encoder_tables.printable(study.encoder_tables).items():
        out.print(f"\n{encoder_tables.CAPTIONS[name]}")
        print_table(frame)
