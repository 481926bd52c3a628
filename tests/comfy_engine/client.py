"""Talks to a ComfyUI server as its frontend does: HTTP for questions, one WebSocket for what happens."""

from __future__ import annotations

import json
import struct
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# Node id -> {"class_type": ..., "inputs": {...}}: what POST /prompt takes.
Prompt = dict[str, dict[str, Any]]
ENDS = ("execution_success", "execution_error", "execution_interrupted")
PREVIEW, PREVIEW_WITH_METADATA = 1, 4


class RefusedError(Exception):
    """The server answered with an error status; `status` and `body` are its answer."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"HTTP {status}: {json.dumps(body)[:3000]}")
        self.status = status
        self.body = body

    def texts(self, node: str) -> str:
        """All that the server says about one node, for looking into."""
        return json.dumps(self.body["node_errors"].get(node, {}).get("errors", []), ensure_ascii=False)


@dataclass(frozen=True)
class Event:
    """A WebSocket message: `kind` as ComfyUI names it ("preview" for a binary picture), its data and arrival time."""

    kind: str
    data: dict[str, Any]
    at: float


@dataclass(frozen=True)
class Run:
    """A prompt's way through the server, from its start to its end."""

    prompt_id: str
    events: list[Event]
    history: dict[str, Any]

    def of(self, kind: str, node: str | None = None) -> list[dict[str, Any]]:
        """The data of the events of one kind in order, of one node if given."""
        found = [event.data for event in self.events if event.kind == kind]
        return [data for data in found if node is None or str(data.get("node")) == node]

    @property
    def end(self) -> str:
        """The event that ended it, one of ENDS."""
        return next(event.kind for event in self.events if event.kind in ENDS)

    @property
    def executed(self) -> list[str]:
        """The nodes that ran, in order (not those answered from the cache)."""
        return [data["node"] for data in self.of("executing") if data["node"] is not None]

    @property
    def error(self) -> dict[str, Any]:
        """The data of `execution_error`: node_id, exception_type, exception_message, traceback."""
        (error,) = self.of("execution_error")
        return error

    def images(self, node: str) -> list[dict[str, str]]:
        """What a node showed: dicts of filename, subfolder and type."""
        return list(self.history["outputs"].get(node, {}).get("images", []))

    def text(self, node: str) -> list[str]:
        """The text that a node showed."""
        return list(self.history["outputs"].get(node, {}).get("text", []))


class Listener:
    """The WebSocket of one client; a thread collects, the tests wait."""

    def __init__(self, url: str) -> None:
        # In the extra `comfy`, not in `dev`: only these tests need it.
        from websocket import create_connection

        self.events: list[Event] = []
        self._failure: Exception | None = None
        self._changed = threading.Condition()
        self._socket = create_connection(url, timeout=20)
        self._socket.settimeout(None)
        # What the frontend says of itself; without it previews come without their node.
        self._socket.send(json.dumps({"type": "feature_flags", "data": {"supports_preview_metadata": True}}))
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()
        self.wait(lambda events: any(event.kind == "feature_flags" for event in events), 20)

    def _collect(self) -> None:
        try:
            while True:
                message = self._socket.recv()
                event = decode(message)
                with self._changed:
                    self.events.append(event)
                    self._changed.notify_all()
        except Exception as error:  # whatever ended the connection is told to whoever waits
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def wait(self, condition: Callable[[list[Event]], Any], timeout: float) -> Any:
        """Wait until `condition(events so far)` is true and return its value. Raises TimeoutError, ConnectionError."""
        end = time.monotonic() + timeout
        with self._changed:
            while True:
                value = condition(self.events)
                if value:
                    return value
                if self._failure is not None:
                    raise ConnectionError(f"the server closed the connection: {self._failure!r}")
                left = end - time.monotonic()
                if left <= 0:
                    last = [(event.kind, str(event.data)[:200]) for event in self.events[-5:]]
                    raise TimeoutError(f"nothing of what was waited for came within {timeout} s; last events: {last}")
                self._changed.wait(left)

    def close(self) -> None:
        """Leave; the server goes on."""
        self._socket.close()
        self._thread.join(5)


def decode(message: str | bytes) -> Event:
    """One WebSocket message as an event."""
    now = time.monotonic()
    if isinstance(message, str):
        content = json.loads(message)
        return Event(content["type"], content["data"], now)
    (number,) = struct.unpack(">I", message[:4])
    if number == PREVIEW:
        return Event("preview", {"image": message[8:]}, now)
    if number == PREVIEW_WITH_METADATA:
        (length,) = struct.unpack(">I", message[4:8])
        metadata = json.loads(message[8 : 8 + length])
        return Event("preview", {**metadata, "node": metadata.get("node_id"), "image": message[8 + length :]}, now)
    return Event(f"binary {number}", {"bytes": message[4:]}, now)


class Client:
    """One browser tab's worth of talk with a server."""

    def __init__(self, url: str, client_id: str | None = None) -> None:
        self.url = url
        self.id = client_id or uuid.uuid4().hex
        self._listener: Listener | None = None

    @property
    def listener(self) -> Listener:
        """This client's WebSocket, opened when first needed."""
        if self._listener is None:
            address = self.url.replace("http", "ws", 1)
            self._listener = Listener(f"{address}/ws?clientId={self.id}")
        return self._listener

    def close(self) -> None:
        """Close the WebSocket."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    # --- HTTP ------------------------------------------------------------------------------------------------------

    def request(self, path: str, body: Any = None) -> bytes:
        """GET, or POST with a JSON body. Raises RefusedError on an error status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            content = error.read()
            try:
                raise RefusedError(error.code, json.loads(content)) from None
            except json.JSONDecodeError:
                raise RefusedError(error.code, content.decode(errors="replace")) from None

    def get(self, path: str) -> Any:
        """The JSON that a GET answers."""
        return json.loads(self.request(path))

    def object_info(self) -> dict[str, Any]:
        """What the server says about every node."""
        return dict(self.get("/object_info"))

    def queue(self, prompt: Prompt, workflow: dict[str, Any] | None = None) -> str:
        """Queue a prompt, with the workflow that it was made from as the editor does; its id. Raises RefusedError."""
        _ = self.listener  # events from the very first one
        extra = {} if workflow is None else {"extra_data": {"extra_pnginfo": {"workflow": workflow}}}
        answer = json.loads(self.request("/prompt", {"prompt": prompt, "client_id": self.id, **extra}))
        if answer["node_errors"]:  # a part of the graph was left out
            raise RefusedError(200, answer)
        return str(answer["prompt_id"])

    def interrupt(self, prompt_id: str | None = None) -> None:
        """Press Stop: whatever runs, or that prompt only."""
        self.request("/interrupt", {} if prompt_id is None else {"prompt_id": prompt_id})

    def free(self) -> None:
        """Press `Unload models and clear the cache`."""
        self.request("/free", {"unload_models": True, "free_memory": True})

    def queued(self) -> tuple[list[str], list[str]]:
        """The ids of the prompts that run and that wait."""
        state = self.get("/queue")
        return [item[1] for item in state["queue_running"]], [item[1] for item in state["queue_pending"]]

    def view(self, image: dict[str, str]) -> bytes:
        """The file of an image that a node showed."""
        return self.request("/view?" + urllib.parse.urlencode(image))

    # --- runs ------------------------------------------------------------------------------------------------------

    def wait(self, prompt_id: str, timeout: float = 180.0) -> Run:
        """Wait for the end of a prompt; everything that happened in it."""

        def ended(events: list[Event]) -> bool:
            return any(event.kind in ENDS and event.data.get("prompt_id") == prompt_id for event in events)

        self.listener.wait(ended, timeout)
        history = self._history(prompt_id)
        # The last `executing` (node null) may follow the end; the history is written after both.
        events = [event for event in list(self.listener.events) if event.data.get("prompt_id") == prompt_id]
        return Run(prompt_id, events, history)

    def _history(self, prompt_id: str, timeout: float = 20.0) -> dict[str, Any]:
        """The history entry of a prompt; it is written a little after the end is announced."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            found = self.get(f"/history/{prompt_id}").get(prompt_id)
            if found:
                return dict(found)
            time.sleep(0.05)
        raise TimeoutError(f"prompt {prompt_id} ended but is not in the history after {timeout} s")

    def run(self, prompt: Prompt, timeout: float = 180.0) -> Run:
        """Queue a prompt and wait for its end."""
        return self.wait(self.queue(prompt), timeout)


@contextmanager
def connected(url: str, client_id: str | None = None) -> Iterator[Client]:
    """A client that is closed at the end; with an id it takes the place of an earlier one, as a reloaded page does."""
    client = Client(url, client_id)
    try:
        yield client
    finally:
        client.close()
