"""From widgets to the core's settings."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


@pytest.fixture
def settings(pack):
    return pack("settings")


@pytest.fixture
def backbone(pack):
    """The one attribute that counts here, unlike every value the tests set."""
    sampling = pack("core").core().Sampling(guidance=3.0, temperature=0.9, top_k=100, top_p=0.8)
    return SimpleNamespace(default_sampling=sampling)


def test_the_presets_are_those_of_the_core(pack, settings):
    assert pack("core").core("presets").PRESETS == settings.PRESETS


def test_the_choices_of_graphs_are_those_of_the_core(pack, settings):
    assert pack("core").core("graphs").GRAPHS == settings.GRAPHS


def test_every_preset_gives_the_cores_schedule_whatever_the_other_widgets_say(pack, settings):
    presets = pack("core").core("presets")
    for name in settings.PRESETS:
        for device in ("cpu", "cuda"):
            odd = settings.Verification(name, "rounds", 7, 9.0, 3, 2, 1, "separate")
            assert odd.schedule(device) == presets.preset_schedule(name, device)


def test_nothing_connected_is_exact(settings):
    schedule = settings.Verification().schedule("cpu")
    assert (schedule.name, schedule.coupling, schedule.tolerance) == ("auto", "gumbel", 0)


def test_custom_reads_the_widgets(pack, settings):
    core = pack("core").core()
    rolling = settings.Verification("custom", "rolling", 4, 2.5, 3, 2, 1, "separate")
    assert rolling.schedule("cpu") == core.Rolling(window_rows=4, tolerance=2.5)
    rounds = settings.Verification("custom", "rounds", 4, 2.5, 3, 2, 1, "separate")
    wanted = core.Rounds(rounds=3, rows_per_block=2, incremental_rounds=1, commit="separate")
    assert rounds.schedule("cuda") == wanted


@pytest.mark.parametrize("wrong", [{"preset": "fast"}, {"mode": "waves"}, {"commit": "never"}])
def test_a_combo_of_another_version_is_refused_with_the_options(pack, settings, wrong):
    with pytest.raises(pack("errors").NodeError, match=r"must be one of .*; got"):
        settings.Verification(**wrong)


def test_minus_one_means_the_backbones_own(settings, backbone):
    assert settings.sampling(backbone, -1.0, -1.0, -1, -1.0) == backbone.default_sampling


def test_every_widget_sets_its_own_value(settings, backbone):
    chosen = settings.sampling(backbone, 0.0, 0.0, 0, 1.0)
    assert (chosen.guidance, chosen.temperature, chosen.top_k, chosen.top_p) == (0.0, 0.0, 0, 1.0)
    assert settings.sampling(backbone, 5.5, -1.0, -1, -1.0).guidance == 5.5
    assert settings.sampling(backbone, -1.0, -1.0, 7, -1.0).top_k == 7


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("cfg", (-0.5, -1.0, -1, -1.0)),
        ("temperature", (-1.0, -0.1, -1, -1.0)),
        ("top_p", (-1.0, -1.0, -1, 0.0)),
        ("top_p", (-1.0, -1.0, -1, 1.01)),
        ("top_k", (-1.0, -1.0, -2, -1.0)),
        ("cfg", (float("nan"), -1.0, -1, -1.0)),
    ],
)
def test_values_that_cannot_work_are_refused_by_the_widgets_name(pack, settings, backbone, name, values):
    with pytest.raises(pack("errors").NodeError, match=f"^{name} must be -1 "):
        settings.sampling(backbone, *values)


def test_prompts_are_lines_and_only_line_ends_end_them(settings):
    assert settings.prompt_lines(" a cat\r\n\n \na\u2028dog\x0c on grass") == ["a cat", "a\u2028dog\x0c on grass"]
