"""The published Delta-FLOPs counted again, and the true costs per sample, both against numbers written out."""

import pytest

from ovo_clinic.paper_costs import PaperCosts, paper_costs

MIMIC, TADPOLE, EICU = (4, 256), (6, 64), (6, 256)
PUBLISHED = {
    "mimic": {"cross": 52_723_712, "self": 67_633_152, "ovo": 4_227_072},
    "tadpole": {"cross": 8_921_088, "self": 9_633_792, "ovo": 405_504},
    "eicu": {"cross": 129_957_888, "self": 151_781_376, "ovo": 6_340_608},
}


@pytest.fixture(scope="module")
def costs() -> PaperCosts:
    return paper_costs()


def test_all_nine_published_numbers_are_counted(costs: PaperCosts) -> None:
    assert len(costs.delta) == 9
    for row in costs.delta.itertuples():
        expected = PUBLISHED[row.dataset][row.head.split("_")[0]]
        assert (row.printed, row.counted) == (expected, expected)


@pytest.mark.parametrize(("dataset", "k", "d"), [("mimic", *MIMIC), ("tadpole", *TADPOLE), ("eicu", *EICU)])
def test_true_costs_per_sample(costs: PaperCosts, dataset: str, k: int, d: int) -> None:
    found = costs.per_sample.set_index("layout")[dataset]
    expected = {
        "self-attention, a modality a token": 4 * k * d**2 + 2 * k**2 * d,
        "self-attention, all modalities one token": 4 * (k * d) ** 2 + 2 * k * d,
        "cross-attention, every pair alone": k * (k - 1) * (4 * d**2 + 2 * d),
        "cross-attention, each to all others": 4 * k * d**2 + 2 * k * (k - 1) * d,
        "OvO, 1 head (the identity)": k * (d * d + 2 * d),
    }
    expected |= {f"OvO, {h} heads": k * (d * (d // h) + 2 * h * d) for h in (2, 4, 8)}
    n, own = 4 * k, "our {}, 4 tokens a modality, minus concat"
    expected[own.format("self_attention")] = 4 * n * d**2 + 2 * n**2 * d
    # Four heads: the query's map is within a head; the output projection comes after the mean over tokens.
    expected[own.format("ovo")] = n * d**2 + n * d * (d // 4) + 2 * n * 4 * d + k * d**2
    # One q, k, v projection of every token, 4 x 4 scores of every pair, one output projection of every pair.
    expected[own.format("cross_attention")] = 3 * n * d**2 + k * (k - 1) * (2 * 4 * 4 * d + d**2)
    assert found.to_dict() == expected


def test_the_explanation_states_the_share_that_was_counted(costs: PaperCosts) -> None:
    macs = costs.per_sample.set_index("layout")
    own = "our {}, 4 tokens a modality, minus concat"
    share = 100 * macs.loc[own.format("ovo")] / macs.loc[own.format("self_attention")]
    assert f"{share.min():.0f}-{share.max():.0f} % of self-attention" in costs.explanation
