"""The paper's printed figures hang together: Welch's test from the printed summaries, and every row of every table."""

import pytest
from scipy.stats import ttest_ind_from_stats

from ovo_clinic import published
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
def test_p_values_from_the_printed_summaries(table: Table) -> None:
    scores = {row.head: row.scores for row in table.rows if row.head}
    compared = [found for found in table.p_values if found.against]
    assert compared
    for found in compared:
        own, other = scores[published.OVO][found.metric], scores[found.against][found.metric]
        p = ttest_ind_from_stats(*own, 10, *other, 10, equal_var=False).pvalue
        assert found.from_summary == pytest.approx(p, rel=0.02)
