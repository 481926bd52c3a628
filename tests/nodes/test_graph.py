"""Looking at the graph that is being queued."""

from __future__ import annotations

import asyncio
import contextvars

import pytest


def node(kind, **inputs):
    return {"class_type": kind, "inputs": inputs}


PROMPT = {
    "1": node("SSDLoadBackbone", backbone="x", precision="auto"),
    "5:12": node("SSDSampler", backbone=["1", 0], positive="a cat", grid=["7", 0], heads=["gone", 0]),
    "7": node("PrimitiveString", value="24x24"),
}


@pytest.fixture
def graph(pack):
    return pack("host.graph")


def test_constants_links_and_the_other_end(graph):
    sampler = graph.QueuedNode(PROMPT, "5:12")
    assert sampler.constant("positive") == "a cat"
    assert sampler.constant("grid") is None
    assert sampler.connected("grid")
    assert not sampler.connected("tokens")
    assert not sampler.connected("positive")
    assert sampler.has_constant("positive")
    assert not sampler.has_constant("grid")
    assert not sampler.has_constant("seed")
    assert sampler.linked("backbone", "SSDLoadBackbone").constant("backbone") == "x"


def test_ends_of_another_kind_or_that_do_not_exist_are_unknown(graph):
    sampler = graph.QueuedNode(PROMPT, "5:12")
    assert sampler.linked("backbone", "SSDLoadHeads") is None
    assert sampler.linked("heads", "SSDLoadHeads") is None
    assert sampler.linked("positive", "SSDLoadBackbone") is None
    assert sampler.linked("tokens", "SSDLoadTokens") is None


def test_outside_of_queueing_there_is_no_graph(graph):
    def look():
        return graph.queued_node("5:12")

    assert contextvars.Context().run(look) is None


def test_the_graph_of_the_request_is_the_one_that_is_seen(graph):
    """Two browsers queue at once: each validation sees its own graph."""

    async def request(prompt, seen):
        body = {"prompt": prompt}
        assert graph._remember(body) is body  # ComfyUI goes on with what comes back
        await asyncio.sleep(0.01)
        seen.append(graph.queued_node("1").constant("backbone"))

    async def both():
        seen: list[str] = []
        prompts = [{"1": node("SSDLoadBackbone", backbone=name)} for name in ("a", "b")]
        await asyncio.gather(*(request(prompt, seen) for prompt in prompts))
        return seen

    assert asyncio.run(both()) == ["a", "b"]


@pytest.mark.parametrize("body", [{}, {"prompt": None}, {"prompt": "1 text"}])
def test_a_request_without_a_graph_does_no_harm(graph, body):
    def look():
        assert graph._remember(body) is body
        return graph.queued_node("1")

    assert contextvars.Context().run(look) is None


def test_a_graph_that_another_extension_exchanges_later_is_the_one_that_counts(graph):
    def look():
        body = {"prompt": {"1": node("SSDLoadBackbone", backbone="old")}}
        graph._remember(body)
        body["prompt"] = {"1": node("SSDLoadBackbone", backbone="new")}
        return graph.queued_node("1").constant("backbone")

    assert contextvars.Context().run(look) == "new"


def test_a_node_that_is_not_in_the_graph_is_unknown(graph):
    def look():
        graph._remember({"prompt": PROMPT})
        return graph.queued_node("99"), graph.queued_node(None), graph.queued_node("7").kind

    assert contextvars.Context().run(look) == (None, None, "PrimitiveString")
