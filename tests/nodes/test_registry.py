"""One set of weights for equal choices, kept alive by its users alone."""

from __future__ import annotations

import threading
import time
import weakref


class Weights:
    """Something that can be referred to weakly."""


def test_the_same_key_gives_the_same_object_and_makes_it_once(pack):
    shared, made = pack("host.registry").SharedModels(), []

    def make():
        made.append(Weights())
        return made[-1]

    first = shared.get(("a", 1), make)
    assert shared.get(("a", 1), make) is first
    assert shared.get(("a", 2), make) is not first
    assert len(made) == 2


def test_nothing_is_kept_alive(pack):
    shared = pack("host.registry").SharedModels()
    first = shared.get("key", Weights)
    gone = weakref.ref(first)
    del first
    assert gone() is None
    assert isinstance(shared.get("key", Weights), Weights)


def test_a_failed_load_leaves_nothing_behind(pack):
    shared = pack("host.registry").SharedModels()

    def fail():
        raise RuntimeError("no file")

    for _ in range(2):
        try:
            shared.get("key", fail)
        except RuntimeError:
            continue
        raise AssertionError("the failure was swallowed")
    assert isinstance(shared.get("key", Weights), Weights)


def test_two_threads_get_one_object(pack):
    shared, made, got = pack("host.registry").SharedModels(), [], []

    def make():
        time.sleep(0.05)
        made.append(Weights())
        return made[-1]

    threads = [threading.Thread(target=lambda: got.append(shared.get("key", make))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert all(one is made[0] for one in got)
