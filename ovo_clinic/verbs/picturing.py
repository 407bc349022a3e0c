"""`heat-maps`: pictures of what an image encoder looks at in single units."""

from pathlib import Path

from ovo_clinic import heat_maps as maps
from ovo_clinic import studies
from ovo_clinic.errors import UserError
from ovo_clinic.registry import suggest


def heat_maps(study: str | None = None, *, model: str | None = None, units: int = 8) -> list[Path]:
    """Writes pictures of single test units with what the model looked at, into the folder of its first seed's run.

    Args:
        study: its name, or its folder (default: the newest study).
        model: a head or encoder of it, by label (default: the first).
        units: how many.

    Returns:
        The pictures, patient-level and readable by their owner only.

    Raises:
        UserError: no such study or model, or one without images of test units.
    """
    comparison = studies.read(studies.find(study))
    label = comparison.heads[0] if model is None else model
    if label not in comparison.heads:
        raise UserError(f"--model: '{label}' is not in the study{suggest(label, comparison.heads)}")
    folder = comparison.run_folders[label][0]
    written = maps.write_units(comparison.prepared, folder, units)
    if not written:
        raise UserError(
            f"{comparison.name}: '{label}' takes no images, or no test unit has one: there is nothing to picture"
        )
    return written
