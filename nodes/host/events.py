"""The events that the browser widget lives on: ``ssd.rows``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from comfy_execution.utils import get_executing_context
from server import PromptServer

from . import stop

_log = logging.getLogger(__name__)

EVENT = "ssd.rows"
VERSION = 1


@dataclass(frozen=True)
class RunAddress:
    """Whose events they are: the queued prompt, the node's execution id, and the workflow's id if it is known."""

    prompt_id: str
    node: str
    workflow: str | None

    @classmethod
    def of(cls, hidden: Any) -> RunAddress:
        """``hidden``: a node's hidden values (``unique_id``, ``extra_pnginfo``)."""
        context = get_executing_context()
        prompt_id = context.prompt_id if context is not None else PromptServer.instance.last_prompt_id
        info = hidden.extra_pnginfo  # whatever the client sent
        workflow = info.get("workflow") if isinstance(info, dict) else None
        workflow_id = workflow.get("id") if isinstance(workflow, dict) else None
        return cls(str(prompt_id), str(hidden.unique_id), None if workflow_id is None else str(workflow_id))


class RowsChannel:
    """Sends one run's events: ``begin`` when entered, then ``rows``, and exactly one ``end`` when left, whatever
    happened. ``preview`` is an ``ssd_core.preview.Preview``: where it fails, the log says why and the run goes on
    without pictures on the way."""

    def __init__(self, address: RunAddress, preview: Any, label: str = "") -> None:
        self._address = address
        self._preview = preview
        self._label = label
        self._number = 0
        self._result: Any = None
        self._failed = False

    def __enter__(self) -> RowsChannel:
        self._tell(self._preview.begin)
        return self

    def rows(self, event: Any) -> None:
        """Tells of a moment of the run, an ``ssd_core.RowsEvent``."""
        if not self._failed:
            self._tell(lambda: self._preview.rows(event))

    def finished(self, result: Any) -> None:
        """Keeps the ``ssd_core.Generation`` for the ``end``."""
        self._result = result

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status = "failed"
        if kind is None:
            status = "done"
            if self._tell(lambda: self._preview.end(status, self._result)):
                return
        elif issubclass(kind, stop.Stopped):
            status = "stopped"
        self._send(self._preview.end(status))

    def _tell(self, part: Callable[[], dict[str, Any]]) -> bool:
        """Sends what ``part`` makes. A view that cannot be made is no reason to lose a picture."""
        try:
            made = part()
        except stop.Stopped:
            raise
        except Exception:
            self._failed = True
            _log.exception("the live view failed; the run goes on without it")
            return False
        self._send(made)
        return True

    def _send(self, part: dict[str, Any]) -> None:
        server = PromptServer.instance
        if server.client_id is None:  # queued by a script that does not listen: nobody else is meant
            return
        event = {
            "version": VERSION,
            "prompt_id": self._address.prompt_id,
            "node": self._address.node,
            "workflow": self._address.workflow,
            "seq": self._number,
            "label": self._label,
            **part,
        }
        self._number += 1
        server.send_sync(EVENT, event, server.client_id)
