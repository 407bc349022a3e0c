"""Rows of labevents of the synthetic MIMIC-IV folder, and d_labitems."""

import numpy as np
import polars as pl

from ovo_clinic.synthetic.mimic_items import PANELS, TESTS
from ovo_clinic.synthetic.mimic_rounds import Rounds, levels, measured, on_scale
from ovo_clinic.synthetic.mimic_stays import MINUTE, Chunk, choose, gather, moments

ITEMS = [test for test, _, _ in TESTS]


def lab_table(rng: np.random.Generator, chunk: Chunk, rows_per_stay: int) -> pl.DataFrame:
    """Rows of labevents in the layout of the version: no stay_id, and no hadm_id in many."""
    stays = chunk.stays
    chance = np.array([PANELS[test.kit] for test in ITEMS])
    draws = Rounds.draw(rng, stays, rows_per_stay / chance.sum(), outside=0.25)
    panels = rng.random((len(draws), len(PANELS))) < np.array(list(PANELS.values()))
    drawn, index = np.nonzero(panels[:, [list(PANELS).index(test.kit) for test in ITEMS]])
    stay, inside, time = draws.stay[drawn], draws.inside[drawn], draws.time[drawn]
    level = levels(rng, stays, [(test.driver, test.sign) for test in ITEMS])
    number = on_scale(ITEMS, index, measured(rng, level[stay, index], inside))
    count = len(stay)

    keys = chunk.keys(stay)
    # Half of what is drawn outside the stay, and a fifth of the rest, is not linked to the admission.
    linked = pl.Series(rng.random(count) < np.where(inside, 0.8, 0.5))
    negative = (index == [test.itemid for test in ITEMS].index(51478)) & (rng.random(count) < 0.7)
    value = pl.Series(number, nan_to_null=True).cast(pl.String).str.strip_suffix(".0")
    hidden = pl.Series(rng.random(count) < 0.03)
    value = value.set(hidden, "___").set(pl.Series(negative), None)
    far = np.abs(number - np.array([test.centre for test in ITEMS])[index])
    abnormal = far > np.array([test.scale for test in ITEMS])[index]
    columns = {
        "labevent_id": pl.Series(chunk.labs + 1 + np.arange(count)),
        "subject_id": pl.Series(keys["subject_id"]),
        "hadm_id": pl.Series(keys["hadm_id"]).set(~linked, None),
        "specimen_id": pl.Series(chunk.labs + 1 + drawn),
        "itemid": pl.Series([test.itemid for test in ITEMS]).gather(pl.Series(index)),
        **(
            {}
            if chunk.version == "1.0"
            else {"order_provider_id": pl.Series([None], dtype=pl.String).new_from_index(0, count)}
        ),
        "charttime": moments(time),
        "storetime": moments(time + rng.integers(5, 240, len(draws))[drawn] * MINUTE),
        "value": value,
        "valuenum": pl.Series(np.where(negative, np.nan, number), nan_to_null=True)
        .cast(pl.String)
        .str.strip_suffix(".0"),
        "valueuom": gather([test.unit for test in ITEMS], index),
        "ref_range_lower": gather([_text(test.centre - test.scale) for test in ITEMS], index),
        "ref_range_upper": gather([_text(test.centre + test.scale) for test in ITEMS], index),
        "flag": gather([None, "abnormal"], abnormal.astype(np.int64)),
        "priority": choose(rng, {"STAT": 0.53, "ROUTINE": 0.38, None: 0.09}, count),
        "comments": gather(
            [None, "NEG.", "Invented remark, with a comma."], np.where(negative, 1, 2 * hidden.to_numpy())
        ),
    }
    return pl.DataFrame(columns)


def test_names(version: str) -> pl.DataFrame:
    """d_labitems: the tests that the folder uses."""
    frame = pl.DataFrame(
        [(test.itemid, test.label, fluid, category) for test, fluid, category in TESTS],
        schema=["itemid", "label", "fluid", "category"],
        orient="row",
    )
    return frame.with_columns(pl.lit(None, pl.String).alias("loinc_code")) if version == "1.0" else frame


def _text(number: float) -> str:
    return f"{round(number, 2):g}"
