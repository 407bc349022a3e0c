"""A sweep beside modalities alone hides the modalities of the heads, not of the first row of the table."""

import pandas as pd

from tests.report.conftest import Reported


def test_modalities_are_hidden_where_modalities_alone_are_compared_too(binary: Reported) -> None:
    table = pd.read_csv(binary.folder / "missingness.csv")
    hidden = table.groupby("rate")["hidden"].first()
    assert hidden[0.0] == 0 and 0.2 < hidden[0.5] < 0.5
    ovo = table.query("model == 'ovo' and metric == 'auroc'").set_index("rate")["mean"]
    assert ovo[0.0] != ovo[0.5]
