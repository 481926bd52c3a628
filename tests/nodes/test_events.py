"""Events and progress of a run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

HIDDEN = SimpleNamespace(unique_id="5:12", extra_pnginfo={"workflow": {"id": "w-1"}})


class Preview:
    """Says what it was asked for, as `ssd_core.preview.Preview` does."""

    def begin(self):
        return {"kind": "begin", "status": "running"}

    def rows(self, event):
        return {"kind": "rows", "status": "running", "accepted": event.rows_accepted}

    def end(self, status, result=None):
        return {"kind": "end", "status": status, "result": result}


@pytest.fixture
def channel(pack):
    events = pack("host.events")
    return lambda label="": events.RowsChannel(events.RunAddress.of(HIDDEN), Preview(), label)


def rows(*accepted):
    return SimpleNamespace(rows_accepted=accepted)


def kinds(comfy):
    return [(data["kind"], data["status"]) for _, data, _ in comfy.sent]


def test_a_run_has_one_begin_its_rows_and_one_end_with_the_result(comfy, channel):
    with channel("plain") as run:
        run.rows(rows(1))
        run.rows(rows(2))
        run.finished("pictures")
    assert kinds(comfy) == [("begin", "running"), ("rows", "running"), ("rows", "running"), ("end", "done")]
    assert [data["seq"] for _, data, _ in comfy.sent] == [0, 1, 2, 3]
    assert comfy.sent[-1][1]["result"] == "pictures"
    for name, data, client in comfy.sent:
        assert (name, client) == ("ssd.rows", "browser")
        assert data["version"] == 1
        assert (data["prompt_id"], data["node"], data["workflow"], data["label"]) == ("p-1", "5:12", "w-1", "plain")


def test_a_stop_ends_as_stopped_and_reaches_comfyui(pack, comfy, channel):
    stop = pack("host.stop")
    comfy.stop = True
    with pytest.raises(stop.Stopped), channel():
        assert stop.poll() is False
    assert kinds(comfy) == [("begin", "running"), ("end", "stopped")]
    assert stop.poll() is False  # the next run is not stopped


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_ends_as_failed_and_reaches_comfyui(comfy, channel, error):
    with pytest.raises(error), channel():
        raise error
    assert kinds(comfy)[-1] == ("end", "failed")
    assert len(comfy.sent) == 2


def test_a_failure_after_the_last_row_shows_no_result(comfy, channel):
    run = channel()
    run.__enter__()
    run.finished("pictures of a run that then failed")
    run.__exit__(MemoryError, MemoryError(), None)
    assert kinds(comfy)[-1] == ("end", "failed")
    assert comfy.sent[-1][1]["result"] is None


STRANGE = [None, {}, [], "text", {"workflow": None}, {"workflow": {}}, {"workflow": "text"}, {"workflow": [1]}]


@pytest.mark.parametrize("info", STRANGE)
def test_a_prompt_without_a_workflow_has_no_workflow_id(pack, info):
    address = pack("host.events").RunAddress.of(SimpleNamespace(unique_id="3", extra_pnginfo=info))
    assert address.workflow is None


def test_the_bar_takes_one_step_a_row_forward_only_and_ends_at_its_maximum(pack, comfy):
    progress = pack("host.progress").RowProgress(4)
    for done in (0, 1, 1, 3, 2, 4):
        progress.reached(done)
    assert comfy.progress == [(0, 4), (1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.parametrize("part", ["begin", "rows", "end"])
def test_a_view_that_fails_costs_no_picture_and_the_log_says_why(comfy, channel, monkeypatch, caplog, part):
    whole = getattr(Preview, part)

    def fail(self, *arguments):
        if part == "end" and len(arguments) < 2:  # without a picture to encode
            return whole(self, *arguments)
        raise RuntimeError("out of memory")

    monkeypatch.setattr(Preview, part, fail)
    with channel() as run:
        run.rows(rows(1))
        run.rows(rows(2))
        run.finished("pictures")
    assert kinds(comfy)[-1] == ("end", "done")
    assert [kind for kind, _ in kinds(comfy)].count("end") == 1
    assert ("rows", "running") not in kinds(comfy) or part == "end"
    (record,) = caplog.records
    assert "live view" in record.getMessage()
    assert "out of memory" in record.exc_text


def test_a_prompt_of_nobody_who_listens_is_told_to_nobody(pack, comfy, channel, monkeypatch):
    monkeypatch.setattr(pack("host.events").PromptServer.instance, "client_id", None)
    with channel() as run:
        run.rows(rows(1))
    assert comfy.sent == []
