"""The grid widget's text."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        ("auto", None),
        ("", None),
        (" AUTO ", None),
        ("24x32", (24, 32)),
        (" 24 X 32 ", (24, 32)),
        ("24×32", (24, 32)),
        ("1*9999", (1, 9999)),
    ],
)
def test_what_people_write_is_understood(pack, text, grid):
    assert pack("grid").parse_grid(text) == grid


@pytest.mark.parametrize(
    "text", ["24", "24x", "x24", "0x24", "24x-1", "24x24x24", "a24x24", "24.5x24", "24x10000", "²x3"]
)
def test_anything_else_is_refused_with_an_example(pack, text):
    with pytest.raises(pack("errors").NodeError, match="like 24x24; got "):
        pack("grid").parse_grid(text)
