"""What is refused before a graph is queued, on the embedded model itself."""

from __future__ import annotations

import shutil

import pytest
import torch

BUILT_IN = "emoji scenes (built in)"


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


@pytest.fixture
def graph(pack):
    """A whole graph with changes: ``graph(sampler={...}, heads={...})`` -> the sampler's or another node."""
    pack("host.folders").register()
    queued = pack("host.graph").QueuedNode

    def build(at="sampler", **changes):
        prompt = {
            "backbone": node("SSDLoadBackbone", backbone=BUILT_IN, precision="auto"),
            "heads": node("SSDLoadHeads", backbone=["backbone", 0], heads="built in"),
            "sampler": node(
                "SSDSampler", backbone=["backbone", 0], heads=["heads", 0], positive="a cat", negative="", seed=0,
                cfg=-1.0, temperature=-1.0, top_k=-1, top_p=-1.0, grid="auto", batch_size=1, keep_rows=0,
            ),
        }  # fmt: skip
        for name, values in changes.items():
            kind, inputs = values if isinstance(values, tuple) else ("SSDLoadBackbone", values)
            prompt.setdefault(name, node(kind))["inputs"].update(inputs)
        return queued(prompt, at)

    return build


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


@pytest.mark.parametrize("prefix", ["../out", "a/../../out", "/absolute/out", "", ".", "a/.."])
def test_a_prefix_that_leaves_the_output_folder_is_refused(pack, graph, prefix):
    checks = pack("checks")
    assert "inside ComfyUI's output folder" in checks.answer(checks.tokens_saver, prefix)


@pytest.mark.parametrize("prefix", ["SSD", "tokens/SSD", "a/../b", "%year%-%month%/SSD", "../output/SSD"])
def test_a_prefix_inside_the_output_folder_is_fine(pack, graph, prefix):
    checks = pack("checks")
    assert checks.answer(checks.tokens_saver, prefix) is True


# --- training ------------------------------------------------------------------------------------------------------


@pytest.fixture
def taught(pack, graph):
    """The answer to Train SSD Heads with changes."""
    checks = pack("checks")
    values = {
        "backbone": ["backbone", 0], "prompts": "", "name": "mine", "pictures": 64, "minutes": 15.0, "grid": "auto",
        "seed": 0, "start_from": "nothing",
    }  # fmt: skip

    def answer(backbone=None, **changes):
        settings = {**values, **changes}
        node = graph("train", train=("SSDTrainHeads", settings), backbone=backbone or {})
        return checks.answer(checks.trainer, node, settings["name"])

    return answer


def test_a_training_that_works_is_let_through(taught, heads_of):
    heads_of("narrow.safetensors", hidden=256, neighbours=0)
    for changes in ({}, {"prompts": "a cat\n\na dog", "grid": "16x16"}, {"start_from": "built in"}):
        assert taught(**changes) is True
    assert taught(start_from="narrow.safetensors") is True  # its neighbours are taken over
    assert taught(start_from=["elsewhere", 0], prompts=["elsewhere", 0]) is True


def test_a_start_that_does_not_fit_is_refused_before_hours_of_drawing(taught, heads_of, comfy, pack):
    heads_of("wide.safetensors", hidden=64, backbone="another")
    (comfy.base / "models" / "ssd_heads" / "text.safetensors").write_text("hello", encoding="utf-8")
    assert "trained for features of width 64 (another)" in taught(start_from="wide.safetensors")
    assert "cannot read the heads file" in taught(start_from="text.safetensors")
    assert "cannot read the heads file" in taught(start_from="text.safetensors", backbone={"backbone": ["x", 0]})
    other = comfy.base / "models" / "ar_backbones" / "tuned"
    shutil.copytree(pack("core").core("families.loaders").ASSETS, other)
    pack("host.models").backbone_facts("tuned").name = "tuned"
    assert "no heads for tuned are built in" in taught(start_from="built in", backbone={"backbone": "tuned"})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "a:b"}, "without < >"),
        ({"name": "../x"}, "inside models/ssd_heads"),
        ({"prompts": "a cat\na zeppelin"}, "prompt 2 of the list ('a zeppelin')"),
        ({"grid": "7x7"}, "cannot draw 7x7"),
    ],
)
def test_a_training_that_cannot_work_is_refused_in_words(taught, changes, words):
    assert words in taught(**changes)


@pytest.mark.parametrize("value", ["gone.safetensors", 5, True, {"a": 1}])
def test_a_start_file_that_is_not_there_is_refused_in_words(taught, value):
    assert f"there is no heads file {value!r}" in taught(start_from=value)
    assert "start_from is empty" in taught(start_from=None)


# --- the loaders ---------------------------------------------------------------------------------------------------


@pytest.fixture
def heads_of(pack, comfy):
    """Writes a heads file trained for something."""
    heads = pack("core").core("heads")

    def write(name, **spec):
        made = heads.SpatialHeads(heads.HeadsSpec(horizontal=(1,), vertical=(1,), **spec))
        heads.save_heads(made, comfy.base / "models" / "ssd_heads" / name)

    return write


def test_heads_must_have_been_trained_for_the_connected_backbone(pack, graph, heads_of):
    checks = pack("checks")
    facts = pack("host.models").backbone_facts(BUILT_IN)
    heads_of("fits.safetensors", hidden=256, backbone=facts.name, fingerprint=facts.fingerprint)
    heads_of("wide.safetensors", hidden=64, backbone="another")
    heads_of("old.safetensors", hidden=256, backbone=facts.name, fingerprint="0123456789abcdef")

    def said(choice):
        return checks.answer(checks.heads_loader, graph("heads", heads={"heads": choice}), choice)

    for fine in ("built in", "none (training-free)", "fits.safetensors"):
        assert said(fine) is True
    assert "trained for features of width 64 (another)" in said("wide.safetensors")
    assert "0123456789ab" in said("old.safetensors")
    assert facts.fingerprint[:12] in said("old.safetensors")
    assert "there is no heads file" in said("gone.safetensors")


def test_a_file_that_is_no_heads_file_is_refused(pack, graph, comfy):
    (comfy.base / "models" / "ssd_heads" / "text.safetensors").write_text("hello", encoding="utf-8")
    checks = pack("checks")
    answer = checks.answer(checks.heads_loader, graph("heads"), "text.safetensors")
    assert "cannot read the heads file" in answer


def test_a_backbone_must_be_there_and_known(pack, graph, comfy):
    checks = pack("checks")
    folder = comfy.base / "models" / "ar_backbones" / "foreign"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "unheard_of"}', encoding="utf-8")

    def said(choice, **inputs):
        return checks.answer(checks.backbone_loader, graph("backbone", backbone=inputs), choice)

    assert said(BUILT_IN) is True
    assert "unheard_of" in said("foreign")
    assert "there is no backbone folder 'gone'" in said("gone")
    assert "precision must be one of" in said(BUILT_IN, precision="int8")


def test_what_is_wrong_with_the_backbone_is_told_once_at_its_loader(pack, graph):
    checks = pack("checks")
    sampler = graph(backbone={"backbone": "gone"})
    assert checks.answer(checks.drawing_node, sampler) is True
    assert checks.answer(checks.heads_loader, graph("heads", backbone={"backbone": "gone"}), "built in") is True


def test_tokens_are_read_before_they_are_queued(pack, graph, comfy):
    checks, tokens = pack("checks"), pack("core").core("tokens")
    tokens.save_tokens(
        comfy.base / "input" / "good.safetensors", tokens.ARTokens(torch.zeros(1, 2, 2, dtype=torch.int64))
    )
    (comfy.base / "input" / "bad.safetensors").write_text("hello", encoding="utf-8")
    assert checks.answer(checks.tokens_loader, "good.safetensors") is True
    assert "cannot read the tokens file" in checks.answer(checks.tokens_loader, "bad.safetensors")
    assert "there is no tokens file" in checks.answer(checks.tokens_loader, "gone.safetensors")


def test_our_own_mistakes_are_not_passed_off_as_the_users(pack):
    def broken():
        raise KeyError("ours")

    with pytest.raises(KeyError, match="ours"):
        pack("checks").answer(broken)
