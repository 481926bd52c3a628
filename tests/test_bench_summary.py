"""The summary of `bench`: medians of each decoder, ratios to plain decoding picture by picture."""

from __future__ import annotations

import pytest

from ssd_core.cli.bench_summary import figures, summary_text


def timed(seconds: float, forwards: int = 10, warm: bool = True, **conditions) -> dict:
    return {
        "seconds": seconds,
        "forwards": forwards,
        "warm": warm,
        "batch": 1,
        "threads": 1,
        "torch": "2",
        **conditions,
    }


def test_ratios_are_medians_over_pairs():
    """Of one prompt and image: the ratio of unpaired medians would be 2."""
    plain = {(0, 0): timed(1, 36), (0, 1): timed(2, 36), (1, 0): timed(8, 36), (2, 0): timed(9)}
    own = {(0, 0): timed(0.5, 9), (0, 1): timed(2, 18), (1, 0): timed(1, 12)}
    found = figures({"exact": own, "ar": plain})
    assert found["exact"] == {
        "pictures": 3, "warm": True, "seconds": 1, "forwards": 12,
        "pairs": 3, "pairs_warm": True, "speedup": 2, "forwards_ratio": 3,
    }  # fmt: skip
    assert found["ar"] == {"pictures": 4, "warm": True, "seconds": 5, "forwards": 36}
    assert "pairs" not in figures({"exact": own})["exact"]


def test_a_pair_is_warm_where_both_are():
    plain = {(0, 0): timed(9, warm=False), (0, 1): timed(6), (0, 2): timed(6)}
    own = {(0, 0): timed(3), (0, 1): timed(3, warm=False), (0, 2): timed(1)}
    found = figures({"ar": plain, "exact": own})["exact"]
    assert (found["pairs"], found["pairs_warm"], found["speedup"]) == (1, True, 6)
    del own[0, 2]
    found = figures({"ar": plain, "exact": own})["exact"]
    assert (found["warm"], found["pairs"], found["pairs_warm"], found["speedup"]) == (True, 2, False, 2.5)


@pytest.mark.parametrize("other", [{"batch": 2}, {"threads": 4}, {"torch": "3"}])
def test_other_conditions_make_no_pair(tmp_path, other):
    plain, own = {(0, 0): timed(4), (0, 1): timed(8)}, {(0, 0): timed(2), (0, 1): timed(1, **other)}
    assert figures({"ar": plain, "exact": own})["exact"]["speedup"] == 2
    del own[0, 0]
    found = figures({"ar": plain, "exact": own})
    assert found["exact"]["pairs"] == 0
    assert "no picture timed as ar's was (batch, threads, torch)" in summary_text(found, tmp_path)
