"""The paper's printed figures hang together, and name what there is here."""

import pytest

from ovo_clinic import published, spec
from ovo_clinic.published import TABLES, Table
from ovo_clinic.registry import FUSION


@pytest.mark.parametrize("table", TABLES, ids=[table.dataset for table in TABLES])
def test_rows(table: Table) -> None:
    heads = [row.head for row in table.rows if row.head]
    assert heads == ["concat", published.CROSS, published.OWN, published.OVO]
    assert set(heads) <= set(FUSION.names())
    assert len(table.rows) == table.modalities + len(heads)
    assert [row.delta_flops is not None for row in table.rows[-4:]] == [False, True, True, True]


@pytest.mark.parametrize("table", TABLES, ids=[table.dataset for table in TABLES])
def test_rows_name_modalities_and_tasks_of_ours(table: Table) -> None:
    modalities = [row.modality for row in table.rows if row.modality]
    assert len(set(modalities)) == len(modalities) == table.modalities
    found = spec.load(table.dataset)[0]
    assert set(modalities) == set(found.modalities) and set(table.tasks) <= set(found.tasks)
    assert all(found.tasks[task].leaky for task in table.tasks)
    if table.positive:
        assert all(table.positive in found.tasks[task].classes for task in table.tasks)
