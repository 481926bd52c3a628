"""The graph that is just being queued, so that ``validate_inputs`` can see past its own node.

ComfyUI shows ``validate_inputs`` a node's constants, but not what the other end of a link is set to. Its server does
show every queued graph to those who ask, right before it validates it and in the same task; a context variable keeps
two browsers that queue at once apart.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from server import PromptServer

Prompt = dict[str, Any]
_queued: ContextVar[dict[str, Any] | None] = ContextVar("ssd_queued_request", default=None)


@dataclass(frozen=True)
class QueuedNode:
    """One node of a queued graph."""

    prompt: Prompt
    node_id: str

    @property
    def kind(self) -> str:
        """The node's stable id, like ``SSDSampler``."""
        return str(self.prompt[self.node_id].get("class_type", ""))

    def has_constant(self, name: str) -> bool:
        """Whether the input is set on the node itself."""
        return name in self._inputs and not self.connected(name)

    def constant(self, name: str) -> Any:
        """The value of an input that is set on the node itself; None when it is linked or not there."""
        return self._inputs[name] if self.has_constant(name) else None

    def connected(self, name: str) -> bool:
        """Whether something is linked to the input."""
        return isinstance(self._inputs.get(name), list)

    def linked(self, name: str, kind: str) -> QueuedNode | None:
        """The node at the other end of the input's link if it is of that kind."""
        value = self._inputs.get(name)
        if not isinstance(value, list) or len(value) != 2 or str(value[0]) not in self.prompt:
            return None
        other = QueuedNode(self.prompt, str(value[0]))
        return other if other.kind == kind else None

    @property
    def _inputs(self) -> dict[str, Any]:
        return self.prompt[self.node_id].get("inputs") or {}


def watch() -> None:
    """Asks the server to show queued graphs. Call once."""
    PromptServer.instance.add_on_prompt_handler(_remember)


def queued_node(node_id: str | None) -> QueuedNode | None:
    """The node in the graph that is being validated; None outside of that."""
    # The body, not the graph in it, is what was remembered: another extension may put a new graph into it later.
    prompt = (_queued.get() or {}).get("prompt")
    if not isinstance(prompt, dict) or node_id is None or str(node_id) not in prompt:
        return None
    return QueuedNode(prompt, str(node_id))


def _remember(body: dict[str, Any]) -> dict[str, Any]:
    _queued.set(body)
    return body
