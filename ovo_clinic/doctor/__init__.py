"""Looks at raw files, machine and checkpoints before hours are spent: what is well, what is not, and what to do."""

from collections.abc import Sequence

from ovo_clinic import experiment, raw_folders
from ovo_clinic.doctor.check import Check
from ovo_clinic.doctor.encoders import encoder_checks
from ovo_clinic.doctor.files import Progress, raw_checks
from ovo_clinic.doctor.machine import home_checks, processor_checks, space_checks
from ovo_clinic.errors import UserError

__all__ = ["Check", "examine"]


def examine(
    task: str,
    overrides: Sequence[str] = (),
    *,
    raw: raw_folders.Given | None = None,
    full: bool = False,
    on_progress: Progress = lambda done, total: None,
) -> list[Check]:
    """Everything that a long run on a task needs.

    Args:
        task: a task's name or the path of a config.
        overrides: `key=value` settings.
        raw: folder of the raw files, or one for each source; None for a data set that makes its own.
        full: also read large files to their end: rows, checksums.
        on_progress: called with (tables done, tables in all).

    Raises:
        UserError: a mistake in the settings, or a raw folder that does not exist.
    """
    settings = experiment.load(task, overrides)
    request = settings.data_request()
    checks = []
    if request.spec.raw:
        if raw is None:
            raise UserError(f"--raw: data set '{request.spec.name}' has raw files; name their folder")
        found = raw_checks(request.spec, raw, full, on_progress)
        checks += [*found.checks, *space_checks(list(found.files.values()))]
    return [
        *checks,
        *home_checks(),
        *processor_checks(settings.training),
        *encoder_checks(settings, list(request.spec.modalities)),
    ]
