"""The pictures of ``benchmarks.quality``: intervals of every decoder, and a contact sheet with a row for each."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

import torch
from PIL import Image, ImageDraw, ImageFont

from .features import KINDS
from .picture_store import Lot, PictureStore
from .plot import Axis, Bar, Column, intervals
from .quality_report import Figures


def quality_plot(report: Figures) -> Image.Image:
    """Score and likelihood less plain decoding's of the same seeds, and distances to it, with intervals."""
    table = report["decoders"]
    plain = next(iter(table.values()))
    columns = []
    for key, label in (("all_asked_minus_ar", "all asked, less AR's"), ("nll_minus_ar", "NLL, less AR's")):
        bars = [Bar(name, *row[key]) for name, row in table.items()]
        columns.append(Column(Axis(label), bars, 0.0))
    for kind in KINDS:
        bars = [Bar(name, *row[kind]["distance"]) for name, row in table.items()]
        columns.append(Column(Axis(f"distance to AR: {kind}"), bars, plain[kind]["distance"][0]))
    return intervals(columns)


def contact_sheet(
    store: PictureStore, names: Sequence[tuple[str, str]], lots: Sequence[Lot], columns: int
) -> Image.Image:
    """One row a decoder, one column a prompt: the first of the evaluation set, not picked, same seed down a column."""
    captions = [caption for lot in lots for caption in lot.captions][:columns]
    label, head, gap = 190, 48, 3
    cell = 0
    page = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    sheet = Image.new("RGB", (1, 1))
    for row, (name, slug) in enumerate(names):
        images = list(store.images(torch.cat([store.tokens(slug, lot) for lot in lots])[:columns]))
        if row == 0:
            cell = images[0].shape[0]
            sheet = Image.new("RGB", (label + len(images) * (cell + gap), head + len(names) * (cell + gap)), "white")
            page = ImageDraw.Draw(sheet)
        top = head + row * (cell + gap)
        page.text((label - 10, top + cell // 2), name, "black", ImageFont.load_default(13), anchor="rm")
        for column, image in enumerate(images):
            picture = Image.fromarray((image * 255).round().byte().numpy())
            sheet.paste(picture, (label + column * (cell + gap), top))
    for column, caption in enumerate(captions):
        text = "\n".join(wrap(caption, cell // 7)[:3])
        page.text((label + column * (cell + gap), 2), text, "black", ImageFont.load_default(12))
    return sheet
