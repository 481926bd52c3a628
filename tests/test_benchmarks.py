"""The benchmark scripts measure what they say: tables that add up, pictures that are the library's."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from toys import ToyBackbone, toy_heads

from benchmarks import compare, picture_store, quality
from benchmarks.compare_report import markdown, summary
from benchmarks.compare_runs import PROMPTS, Runs
from benchmarks.decoder_table import PLAIN, Decoder, chosen, decoders
from benchmarks.emoji_score import CATEGORIES, detect, judge, load_detector
from benchmarks.forward_cost import forward_costs
from benchmarks.peak_memory import peak_bytes
from benchmarks.picture_store import Lot, PictureStore
from benchmarks.plot import Axis, Chart, Line, charts_page
from ssd_core import (
    AR,
    Backbone,
    Rounds,
    Sampling,
    SpatialHeads,
    SSDError,
    generate,
    load_backbone,
    load_heads,
)
from ssd_core.distill.likelihood import likelihood
from ssd_core.families.emoji import EmojiBackbone

# --- compare -------------------------------------------------------------------------------------------------------

GRID = (4, 5)
TABLE = [d for d in decoders() if d.name in (PLAIN, "exact, 1 row", "exact, 3 rows, no heads", "rounds r=2, separate")]


def toy_results(folder: Path) -> tuple[ToyBackbone, Runs, compare.Results]:
    backbone = ToyBackbone(*GRID)
    return backbone, Runs(backbone, toy_heads(backbone)), compare.Results(folder / "compare.json", {"threads": 1})


def test_decoders_are_chosen_by_name_or_by_a_part_of_it() -> None:
    assert [d.name for d in chosen(["rounds r=1", "SJD, 3"])] == [
        PLAIN, "rounds r=1", "SJD, 32 tokens", "SJD, 32 tokens, Gumbel", "SJD, 32 tokens, copy drafts",
        "SJD, 32 tokens, left drafts",
    ]  # fmt: skip
    assert [d.name for d in chosen(["nobody"])] == [PLAIN]
    assert len(chosen([])) == len(decoders())


def test_every_decoder_has_a_name_of_its_own_and_can_be_made() -> None:
    names = [decoder.name for decoder in decoders()]
    assert names[0] == PLAIN
    assert len(set(names)) == len(names)
    assert {f"rounds r={r}" for r in range(7)} | {f"rounds r={r}, separate" for r in range(7)} < set(names)
    assert [d.name for d in chosen(["r=2,", "4 rows"])] == [
        PLAIN, "exact, 4 rows", "exact, 4 rows, no heads", "rounds r=2, separate", "rounds r=2, Gumbel",
    ]  # fmt: skip
    assert set(quality.DEFAULT) < set(names)


def test_comparison_measures_what_the_runs_did(tmp_path: Path) -> None:
    """Plain decoding is its own reference; exact mode equals it; rounds take the forwards that the formula says."""
    backbone, runs, results = toy_results(tmp_path)
    compare.measure(backbone, runs, results, {GRID: TABLE}, prompts=2, deadline=math.inf)
    rows = results.content["rows"]
    assert sorted((row["decoder"], row["prompt"]) for row in rows) == sorted(
        (decoder.name, prompt) for decoder in TABLE for prompt in PROMPTS[:2]
    )
    figures = summary(rows)["4x5"]
    assert list(figures) == [row["decoder"] for row in rows[: len(TABLE)]]
    assert figures[PLAIN]["forwards"] == 20
    assert figures[PLAIN]["fewer"] == figures[PLAIN]["faster"] == figures[PLAIN]["equal"] == 1
    for name in ("exact, 1 row", "exact, 3 rows, no heads"):
        assert figures[name]["equal"] == 1
        assert figures[name]["nll"] == pytest.approx(figures[PLAIN]["nll"])
        assert figures[name]["fewer"] > 1
        assert set(figures[name]["by_direction"]) <= {"horizontal", "vertical", "left"}
    first_row = 1 + 2 * math.ceil((GRID[1] - 1) / 5) + 1  # algorithm: 1 + 2 ceil((cols - 1) / 5), 1 for end of line
    assert figures["rounds r=2, separate"]["forwards"] == first_row + 3 * (GRID[0] - 1)
    for row in rows:
        generation = runs.draw(next(d for d in TABLE if d.name == row["decoder"]), row["prompt"], row["seed"], GRID)
        assert row["forwards"] == generation.report.total_forwards
        assert row["faster"] == pytest.approx(row["ar_seconds"] / row["seconds"])
    text = markdown(results.content)
    for decoder in TABLE:
        own = figures[decoder.name]
        counts = [row["forwards"] for row in rows if row["decoder"] == decoder.name]
        assert own["forwards_range"] == [min(counts), max(counts)]
        spread = f" ({min(counts)}–{max(counts)})" if min(counts) < max(counts) else ""
        assert f"| {decoder.name} | {own['forwards']:.0f}{spread} |" in text


def test_comparison_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever run is interrupted, the next call measures each missing picture once and keeps what was there."""
    wanted = sorted((decoder.name, prompt) for decoder in TABLE for prompt in PROMPTS[:2])
    draw = Runs.draw
    for last in (0, 3, 6, 9, 12):
        backbone, runs, results = toy_results(tmp_path / str(last))
        left = last

        def stopping(self: Runs, *arguments: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return draw(self, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Runs, "draw", stopping)
        with pytest.raises(KeyboardInterrupt):
            compare.measure(backbone, runs, results, {GRID: TABLE}, prompts=2, deadline=math.inf)
        monkeypatch.setattr(Runs, "draw", draw)
        backbone, runs, again = toy_results(tmp_path / str(last))
        kept = list(again.content["rows"])
        compare.measure(backbone, runs, again, {GRID: TABLE}, prompts=2, deadline=math.inf)
        assert again.content["rows"][: len(kept)] == kept
        assert sorted((row["decoder"], row["prompt"]) for row in again.content["rows"]) == wanted
        assert set(again.content["memory"]["4x5"]) == {decoder.name for decoder in TABLE}


def test_results_of_another_machine_are_refused(tmp_path: Path) -> None:
    compare.Results(tmp_path / "compare.json", {"threads": 1}).save()
    with pytest.raises(SSDError, match="another folder"):
        compare.Results(tmp_path / "compare.json", {"threads": 2})


def test_no_time_means_no_runs(tmp_path: Path) -> None:
    backbone, runs, results = toy_results(tmp_path)
    compare.measure(backbone, runs, results, {GRID: TABLE}, prompts=2, deadline=-math.inf)
    assert results.content["rows"] == []


def test_wide_forwards_are_timed_as_the_engine_makes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each width that fits, in the middle of the picture, sees the keys before it and itself, not what comes after,
    by the mask that a run makes: numbers to add in the backbone's dtype."""
    backbone = ToyBackbone(*GRID)
    seen: dict[int, torch.Tensor] = {}
    forward = backbone.decoder.forward

    def spying(x, rotary, cache=None, window=None):  # type: ignore[no-untyped-def]
        seen[x.shape[1]] = window.mask
        return forward(x, rotary, cache, window)

    monkeypatch.setattr(backbone.decoder, "forward", spying)
    costs = forward_costs(backbone, "ab", GRID, widths=(1, 4, 24, 25), cycles=3)
    assert [cost.width for cost in costs] == [1, 4, 24]  # 4 rows of 5 codes and an end of line
    assert all(cost.seconds > cost.logits_seconds > 0 for cost in costs)
    assert seen[1] is None
    visible = torch.ones(4, 6 + 10 + 4).tril(6 + 10).bool()  # six prompt tokens
    expected = torch.zeros(visible.shape, dtype=backbone.dtype).masked_fill(~visible, -torch.inf)
    assert torch.equal(seen[4][0, 0], expected.repeat(backbone.decoder.spec.group, 1))


def test_peak_memory_counts_what_is_alive_at_once() -> None:
    """Four times four megabytes and a sum of one number; views, and what was there before, do not count."""
    old = torch.ones(1000, 1000)

    def work() -> None:
        for _ in range(4):
            old.t().add_(1)
            new = old.view(-1) * 2
            new.view(1000, 1000)[0].sum()
            del new

    assert peak_bytes(work, torch.device("cpu")) == 4 * 1000 * 1000 + 4
    assert old[0, 0] == 5


@pytest.mark.parametrize("grid", [(4, 4), (4, 6)])
def test_transformers_draws_our_greedy_codes(tiny_model: Path, grid: tuple[int, int]) -> None:
    """The same network in both, ends of lines and grouped key/value heads included; a changed weight shows."""
    from benchmarks.transformers_speed import as_llama, transformers_codes  # imports transformers

    backbone = load_backbone(tiny_model)
    assert isinstance(backbone, EmojiBackbone)
    greedy = Sampling(temperature=0.0)
    for prompt in ("a red cat", "two dogs", "a heart on grass"):
        ours = generate(backbone, prompt, schedule=AR(), sampling=greedy, grid=grid).tokens[0]
        model = as_llama(backbone, grid)
        assert torch.equal(transformers_codes(model, backbone, prompt, grid, greedy=True), ours)
    model.model.layers[1].self_attn.v_proj.weight.mul_(-3)
    assert not torch.equal(transformers_codes(model, backbone, prompt, grid, greedy=True), ours)


# --- quality -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def emoji() -> tuple[Backbone, SpatialHeads]:
    backbone = load_backbone()
    return backbone, load_heads(backbone)


def store_in(folder: Path, emoji: tuple[Backbone, SpatialHeads]) -> PictureStore:
    return PictureStore(folder, *emoji, load_detector(), (16, 16))


@pytest.mark.slow
def test_store_keeps_what_generate_draws_and_what_the_bench_computes(
    tmp_path: Path, emoji: tuple[Backbone, SpatialHeads], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_in(tmp_path, emoji)
    lot = quality.lots_of(6, 3)[1]
    decoder = Decoder("r0", "rounds", 0, Rounds(0))
    assert not store.has(decoder, lot)
    store.fill(decoder, lot)
    assert store.has(decoder, lot)
    backbone, heads = emoji
    drawn = generate(backbone, lot.captions, heads=heads, schedule=Rounds(0), seed=3, grid=(16, 16))
    assert torch.equal(store.tokens("r0", lot), drawn.tokens)
    figures = store.figures("r0", lot)
    expected = likelihood(backbone, drawn.tokens, lot.captions, backbone.default_sampling)
    assert torch.allclose(figures["nll"], expected.nll)
    assert torch.equal(figures["excluded"], expected.excluded)
    for row, (seen, spec) in enumerate(zip(detect(load_detector(), drawn.images), lot.specs, strict=True)):
        outcome = dict(zip(CATEGORIES, figures["outcomes"][row].tolist(), strict=True))
        assert {name: bool(value) for name, value in outcome.items() if value >= 0} == judge(seen, spec)
    monkeypatch.setattr(picture_store, "generate", None)  # nothing is drawn twice ...
    (tmp_path / "r0" / "figures-00001.safetensors").unlink()  # ... but figures can be made again
    store.fill(decoder, lot)
    assert torch.equal(store.figures("r0", lot)["nll"], figures["nll"])
    for other in (replace(decoder, schedule=Rounds(1)), replace(decoder, heads=False), replace(decoder, drafts="copy")):
        for ask in (store.fill, store.has):
            with pytest.raises(SSDError, match="another name"):
                ask(other, lot)


@pytest.mark.parametrize("text", ["0/2", "3/2", "1/0", "-1/2", "1", "1/2/3", "a/b", "1.5/2", "01/2", ""])
def test_a_share_that_is_none_is_refused(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0/2 would draw the last lot alone."""
    monkeypatch.setattr("sys.argv", ["quality", f"--share={text}"])
    monkeypatch.setattr(quality, "run", lambda options: pytest.fail(f"ran with {options.share}"))
    with pytest.raises(SystemExit, match="2"):
        quality.main()
    assert f"argument --share: got {text!r}, expected I/N with I from 1 to N" in capsys.readouterr().err


def test_shares_are_every_lot_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that --share names, each lot in one process."""
    drawn: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(quality, "load_backbone", lambda **_: ToyBackbone(*GRID))
    monkeypatch.setattr(quality, "load_heads", lambda backbone: None)
    monkeypatch.setattr(quality, "load_detector", lambda: None)
    monkeypatch.setattr(quality, "PictureStore", lambda *_: None)

    def stop(store: None, jobs: object, lots: list[Lot], minutes: float) -> None:
        drawn.extend(lot.number for lot in lots)
        raise SSDError("enough")

    monkeypatch.setattr(quality, "draw", stop)
    for share in ("1/3", "2/3", "3/3"):
        monkeypatch.setattr("sys.argv", ["quality", "--grid=4x5", "--count=10", "--batch=2", f"--share={share}"])
        with pytest.raises(SystemExit):
            quality.main()
    assert drawn == [0, 3, 1, 4, 2]


@pytest.mark.slow
def test_lots_are_drawn_in_turn(tmp_path: Path, emoji: tuple[Backbone, SpatialHeads]) -> None:
    """All decoders have equal numbers at any time."""
    store, order = store_in(tmp_path, emoji), []

    class Watched(PictureStore):
        def fill(self, decoder: Decoder, lot: Lot) -> None:
            order.append((decoder.slug, lot.number, lot.seed))

    watched = Watched(tmp_path, *emoji, store.detector, (16, 16))
    jobs, other, _ = quality.jobs_of(chosen(["rounds r=0", "r=0, sep"]), plain=False)
    quality.draw(watched, [*jobs, other], quality.lots_of(5, 2), minutes=math.inf)
    slugs = ["plain-ar", "rounds-r-0", "rounds-r-0-separate", "plain-ar-other-seeds"]
    shifts = [0, 0, 0, quality.OTHER_SEEDS]
    pairs = list(zip(slugs, shifts, strict=True))
    assert order == [(slug, number, 2 * number + shift) for number in range(3) for slug, shift in pairs]
    order.clear()
    quality.draw(watched, jobs, quality.lots_of(5, 2), minutes=0)
    assert order == []


@pytest.mark.slow
def test_scripts_run_on_the_embedded_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lines that the README names, at their smallest."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    small = ["--grid", "16x16", "--results", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["compare", *small, "--only", "rounds r=1", "r=1, sep", "--prompts", "1"])
    compare.main()
    names = [PLAIN, "rounds r=1", "rounds r=1, separate"]
    assert sorted(row["decoder"] for row in json.loads((tmp_path / "compare.json").read_text())["rows"]) == names
    assert Image.open(tmp_path / "compare.png").width > 1000
    arguments = [*small, "--count", "4", "--batch", "2", "--only", "exact, 1 row", "rounds r=1"]
    monkeypatch.setattr("sys.argv", ["quality", *arguments, "--folder", str(tmp_path / "drawn")])
    quality.main()
    report = json.loads((tmp_path / "quality-16x16.json").read_text())
    assert report["pictures"] == 4
    assert report["check"].endswith("4 of them again by plain decoding: equal codes")
    exact = report["decoders"]["exact, 1 row"]
    assert exact["equal"] == [1, 1, 1]
    assert exact["nll_minus_ar"] == exact["all_asked_minus_ar"] == [0, 0, 0]
    assert exact["objects"] == report["decoders"][PLAIN]["objects"]
    assert report["decoders"]["rounds r=1"]["nll_minus_ar"][1] > 0  # so few rounds break pictures of this model
    sheet = Image.open(tmp_path / "quality-16x16-sheet.jpg")
    assert sheet.height > (len(report["decoders"]) - 1) * 128  # not for other seeds


# --- emoji score ---------------------------------------------------------------------------------------------------


def test_the_score_is_that_of_the_shipped_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no option of its own stays as the model ships it: its top_p most of all."""
    used: list[Sampling] = []
    shipped = SimpleNamespace(default_sampling=Sampling(3.0, 0.7, top_k=50, top_p=0.9))
    script = importlib.import_module("benchmarks.emoji_score.__main__")

    def drawing(backbone: object, captions: list[str], *, sampling: Sampling, **_: object) -> SimpleNamespace:
        used.append(sampling)
        return SimpleNamespace(images=torch.zeros(len(captions), 8, 8, 3))

    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(script, "load_backbone", lambda: shipped)
    monkeypatch.setattr(script, "load_detector", lambda: None)
    monkeypatch.setattr(script, "score", lambda *_: {})
    monkeypatch.setattr(script, "generate", drawing)
    monkeypatch.setattr("sys.argv", ["emoji_score", "--count", "2", "--guidance", "1.5", "2", "--temperature", "0.8"])
    script.main()
    assert used == [Sampling(guidance, 0.8, top_k=50, top_p=0.9) for guidance in (1.5, 2.0)]


# --- plots ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", [False, True])
def test_axes_hold_their_data_and_have_round_ticks(log: bool) -> None:
    values = [0.7, 3.0, 41.0]
    axis = Axis("x", log=log).fitted(values)
    shares = [axis.share(value) for value in values]
    assert 0 < shares[0] < shares[1] < shares[2] < 1
    assert len(axis.ticks) >= 3
    assert all(0 <= axis.share(tick) <= 1 for tick in axis.ticks)
    assert all(f"{tick:g}".strip("0.").strip("0") in {"", "1", "2", "3", "4", "5", "25"} for tick in axis.ticks)
    assert Axis("x", low=0.0, high=1.0).fitted([0.5]).share(0.25) == 0.25
    assert Axis("x").fitted([2.0, 2.0]).share(2.0) == pytest.approx(0.5)


def test_a_line_is_drawn_where_its_points_lie() -> None:
    """A mark at the middle of both axes colours the middle of the box and no other corner."""
    chart = Chart("t", Axis("x", low=0.0, high=2.0), Axis("y", low=0.0, high=2.0), [Line("one", [(1.0, 1.0)])])
    page = charts_page([chart], width=600, height=400)
    blue = [
        (x, y)
        for x in range(80, 480)
        for y in range(45, 340)
        if (pixel := page.getpixel((x, y))) and pixel[2] > pixel[0] + 80  # type: ignore[index,operator]
    ]
    left, top, bottom = 78, 40, 400 - 58
    centre_x, centre_y = sum(x for x, _ in blue) / len(blue), sum(y for _, y in blue) / len(blue)
    assert abs(centre_y - (top + bottom) / 2) < 1.5
    assert max(x for x, _ in blue) - min(x for x, _ in blue) < 12
    assert left < centre_x < 480
