"""What is refused before a graph is queued, on the embedded model itself."""

from __future__ import annotations

import shutil

import pytest
import torch
from nodes_fakes import BUILT_IN


@pytest.fixture
def said(pack, graph):
    """The answer to a graph with changes at the sampler."""
    checks = pack("checks")
    return lambda **changes: checks.answer(checks.drawing_node, graph(**changes))


def test_a_graph_that_works_is_let_through(said):
    assert said() is True
    assert said(sampler={"grid": "16X16", "negative": "red", "cfg": 0.0, "top_p": 1.0, "keep_rows": 0}) is True
    assert said(sampler={"tokens": ["x", 0], "keep_rows": 23, "grid": "24x24"}) is True


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"grid": "24"}, "like 24x24; got '24'"),
        ({"grid": "23x23"}, "cannot draw 23x23 codes"),
        ({"keep_rows": 4}, "connect tokens"),
        ({"keep_rows": 24, "tokens": ["x", 0], "grid": "24x24"}, "from 0 to 23"),
        ({"keep_rows": 16, "tokens": ["x", 0], "grid": "16x24"}, "cannot draw 16x24"),
        ({"positive": "a cat and a zebra"}, "'zebra'"),
        ({"negative": "zebras"}, "'zebras'"),
        ({"cfg": -0.2}, "cfg must be -1"),
        ({"top_p": 0.0}, "top_p must be -1"),
        ({"graphs": "on"}, "graphs must be one of auto, off; got 'on'"),
    ],
)
def test_a_graph_that_cannot_work_is_refused_with_the_reason(said, change, words):
    answer = said(sampler=change)
    assert isinstance(answer, str)
    assert words in answer


def test_what_comes_over_a_link_is_left_to_the_run(said):
    links = {name: ["elsewhere", 0] for name in ("positive", "negative", "grid", "cfg", "keep_rows")}
    assert said(sampler=links) is True
    assert said(sampler={"backbone": ["elsewhere", 0], "grid": "99x99"}) is True


def test_without_a_graph_there_is_nothing_to_say(pack):
    checks = pack("checks")
    assert checks.answer(checks.drawing_node, None) is True
    assert checks.answer(checks.heads_loader, None, "built in") is True
    assert checks.answer(checks.encoder, None) is True


def test_heads_loaded_for_another_choice_are_refused(said):
    answer = said(other={"backbone": BUILT_IN, "precision": "bfloat16"}, heads={"backbone": ["other", 0]})
    assert "connect the same Load AR Backbone" in answer
    same = {"backbone": BUILT_IN, "precision": "auto"}
    assert said(other=same, heads={"backbone": ["other", 0]}) is True
    odd = {"backbone": BUILT_IN, "precision": "bfloat16"}
    assert said(other=odd, heads={"backbone": ["other", 0], "heads": "none (training-free)"}) is True


def test_equal_choices_under_two_names_are_the_same_backbone(said, comfy, tiny_model):
    shutil.copytree(tiny_model, comfy.base / "models" / "ar_backbones" / "owner" / "tiny")
    for one, other in ((BUILT_IN, BUILT_IN), ("owner/tiny", "owner\\tiny")):
        answer = said(
            backbone={"backbone": one, "precision": "auto"},
            other={"backbone": other, "precision": "float32"},  # what auto is on a CPU
            heads={"backbone": ["other", 0]},
            sampler={"positive": ["elsewhere", 0], "negative": ["elsewhere", 0]},
        )
        assert answer is True


@pytest.mark.parametrize("name", ["backbone", "precision"])
def test_a_choice_that_comes_over_a_link_is_left_to_the_run(said, name):
    other = {"backbone": BUILT_IN, "precision": "bfloat16", name: ["elsewhere", 0]}
    assert said(other=other, heads={"backbone": ["other", 0]}) is True


# --- keep_rows against the tokens that are connected ---


def test_rows_are_counted_in_the_tokens_of_another_sampler(said):
    def answer(rows, **first):
        other = {"backbone": ["backbone", 0], "grid": "auto", **first}
        return said(first=("SSDSampler", other), sampler={"keep_rows": rows, "tokens": ["first", 1]})

    assert answer(23) is True
    assert "from 0 to 23" in answer(24)
    assert "from 0 to 15" in answer(16, grid="16x16")
    assert answer(16, grid="24x24") is True
    assert answer(16, grid="nonsense") is True  # that node's own check tells
    assert answer(99, grid=["elsewhere", 0]) is True  # not known before the run


def test_rows_are_counted_through_a_chain_of_samplers_and_a_circle_does_no_harm(said):
    first = {"backbone": ["backbone", 0], "grid": "16x16"}
    second = {"backbone": ["backbone", 0], "grid": "auto", "tokens": ["first", 1]}
    chain = {"first": ("SSDSampler", first), "second": ("SSDSampler", second)}
    assert "from 0 to 15" in said(**chain, sampler={"keep_rows": 16, "tokens": ["second", 1]})
    circle = {"second": ("SSDSampler", {**second, "tokens": ["second", 1]})}
    assert said(**circle, sampler={"keep_rows": 16, "tokens": ["second", 1]}) is True


def test_rows_are_counted_in_encoded_and_in_saved_tokens(pack, said, comfy):
    tokens = pack("core").core("tokens")
    codes = torch.zeros(1, 16, 16, dtype=torch.int64)
    tokens.save_tokens(comfy.base / "input" / "small.safetensors", tokens.ARTokens(codes))
    sources = {
        "encode": ("SSDEncodeImage", {"grid": "16x16"}),
        "load": ("SSDLoadTokens", {"file": "small.safetensors"}),
    }
    for name, source in sources.items():
        node = {name: source}
        assert "from 0 to 15" in said(**node, sampler={"keep_rows": 16, "tokens": [name, 0]})
        assert said(**node, sampler={"keep_rows": 15, "tokens": [name, 0]}) is True
        assert "tokens have 16x16" in said(**node, sampler={"grid": "24x24", "tokens": [name, 0]})
    gone = ("SSDLoadTokens", {"file": "gone.safetensors"})
    assert said(load=gone, sampler={"keep_rows": 16, "tokens": ["load", 0]}) is True  # the loader's check tells


# --- rounds beyond the reach of the heads ---


CUSTOM = {
    "preset": "custom", "mode": "rolling", "window_rows": 1, "tolerance": 0.0, "rounds": 2, "rows_per_block": 1,
    "incremental_rounds": 0, "commit": "fused",
}  # fmt: skip


def test_blocks_that_the_heads_cannot_draft_are_refused_as_the_run_would(pack, said):
    def answer(sampler=None, heads="built in", **changes):
        node = ("SSDVerification", {**CUSTOM, **changes})
        links = {"verification": ["rounds", 0], **(sampler or {})}
        return said(rounds=node, sampler=links, heads={"heads": heads})

    assert answer(mode="rounds", rows_per_block=3) is True
    refused = answer(mode="rounds", rows_per_block=4)
    assert "needs vertical heads 1 to 4, the heads file has [1, 2, 3]" in refused
    assert answer(rows_per_block=4) is True  # the rolling window stops where the heads do
    assert answer(mode="rounds", rows_per_block=4, heads="none (training-free)") is True
    assert answer(mode="rounds", rows_per_block=4, heads=["elsewhere", 0]) is True
    assert answer(mode="rounds", rows_per_block=["elsewhere", 0]) is True
    assert answer(mode="waves", rows_per_block=4) is True  # that node's own check tells
    assert answer(mode="rounds", rows_per_block=4, heads="gone.safetensors") is True
    assert answer({"tokens": ["x", 0]}, mode="rounds", rows_per_block=4) is True  # of unknown size
    assert said(sampler={"verification": ["elsewhere", 0]}) is True

    ssd = pack("core").core()
    backbone = ssd.load_backbone()
    with pytest.raises(ssd.SSDError) as raised:
        ssd.generate(backbone, "a cat", heads=ssd.load_heads(backbone), schedule=ssd.Rounds(rows_per_block=4))
    assert str(raised.value) == refused


@pytest.mark.parametrize("preset", ["Janus (paper)", "Lumina (paper)", "Emu3 (paper)", "draft only"])
def test_presets_beyond_the_reach_of_the_heads_are_refused(said, heads_of, preset, pack):
    facts = pack("host.models").backbone_facts(BUILT_IN)
    heads_of("short.safetensors", hidden=256, backbone=facts.name, fingerprint=facts.fingerprint)
    rounds = ("SSDVerification", {**CUSTOM, "preset": preset})
    changes = {"rounds": rounds, "sampler": {"verification": ["rounds", 0]}}
    assert said(**changes) is True
    assert "needs horizontal heads 1 to 5" in said(**changes, heads={"heads": "short.safetensors"})


def test_saved_tokens_must_be_the_backbones_and_as_many_pictures_as_are_drawn(pack, said, graph, comfy):
    tokens, checks = pack("core").core("tokens"), pack("checks")

    def saved(name, count, info):
        file = comfy.base / "input" / name
        tokens.save_tokens(file, tokens.ARTokens(torch.zeros(count, 24, 24, dtype=torch.int64), info))
        return ("SSDLoadTokens", {"file": name})

    link = {"tokens": ["load", 0]}
    foreign = saved("foreign.safetensors", 1, {"backbone": "emu3-gen"})
    assert "were made with emu3-gen" in said(load=foreign, sampler=link)
    decode = ("SSDDecodeTokens", {"backbone": ["backbone", 0], **link})
    assert "were made with emu3-gen" in checks.answer(checks.decoder, graph("decode", load=foreign, decode=decode))
    three = saved("three.safetensors", 3, {})
    assert "are 3 pictures, batch_size is 2" in said(load=three, sampler={**link, "batch_size": 2})
    assert said(load=three, sampler={**link, "batch_size": 3}) is True
    assert checks.answer(checks.decoder, graph("decode", load=three, decode=decode)) is True
    assert said(load=saved("one.safetensors", 1, {}), sampler={**link, "batch_size": 2}) is True


# --- what a hand-written graph may hold ---


@pytest.mark.parametrize("value", [None, 5, True, {"a": 1}])
def test_strange_values_are_refused_in_words(pack, graph, value):
    checks = pack("checks")
    texts = [
        checks.answer(checks.backbone_loader, graph("backbone", backbone={"backbone": value}), value),
        checks.answer(checks.backbone_loader, graph("backbone", backbone={"precision": value}), BUILT_IN),
        checks.answer(checks.heads_loader, graph("heads", heads={"heads": value}), value),
        checks.answer(checks.verification, graph("rounds", rounds=("SSDVerification", {"preset": value}))),
    ]
    assert [text for text in texts if not isinstance(text, str)] == []


@pytest.mark.parametrize("name", ["cfg", "temperature", "top_k", "top_p", "keep_rows"])
def test_what_comfyui_itself_reports_is_not_reported_twice(said, name):
    assert said(sampler={name: "many"}) is True


def test_numbers_that_make_no_schedule_are_refused_at_their_node(pack, graph):
    checks = pack("checks")
    values = {
        "preset": "custom", "mode": "rolling", "window_rows": 1, "tolerance": 0.0, "rounds": 2, "rows_per_block": 1,
        "incremental_rounds": 0, "commit": "fused",
    }  # fmt: skip

    def answer(**changes):
        return checks.answer(checks.verification, graph("rounds", rounds=("SSDVerification", {**values, **changes})))

    assert answer() is True
    assert answer(mode="rounds", rows_per_block=5) is True
    assert "tolerance" in answer(tolerance=float("nan"))
    assert answer(tolerance=["elsewhere", 0], mode="rolling") is True
    assert "mode must be one of" in answer(mode="waves")


@pytest.mark.parametrize("prefix", ["../out", "a/../../out", "/absolute/out", "", ".", "a/..", "a/", "a\\b\\"])
def test_a_prefix_that_leaves_the_output_folder_is_refused(pack, graph, prefix):
    checks = pack("checks")
    assert "inside ComfyUI's output folder" in checks.answer(checks.tokens_saver, prefix)


@pytest.mark.parametrize("prefix", ["SSD", "tokens/SSD", "a/../b", "%year%-%month%/SSD", "../output/SSD"])
def test_a_prefix_inside_the_output_folder_is_fine(pack, graph, prefix):
    checks = pack("checks")
    assert checks.answer(checks.tokens_saver, prefix) is True
