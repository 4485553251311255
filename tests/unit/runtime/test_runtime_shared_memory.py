"""Sharing by key: made once, counted, freed with the last user."""

import threading

import numpy as np
import pytest

from tilewright.runtime.shared_memory import Shared, content_key


def test_made_once_and_freed_with_the_last_user():
    made, freed = [], []
    pool = Shared()
    for _ in range(3):
        assert pool.take("w", lambda: made.append(1) or "address") == "address"
    assert (len(made), pool.users("w")) == (1, 3)
    for _ in range(2):
        pool.give_back("w", freed.append)
    assert freed == []
    pool.give_back("w", freed.append)
    assert (freed, len(pool), pool.users("w")) == (["address"], 0, 0)
    with pytest.raises(KeyError):
        pool.give_back("w", freed.append)


def test_what_fails_to_be_made_is_not_held():
    pool = Shared()
    with pytest.raises(MemoryError):
        pool.take("w", lambda: (_ for _ in ()).throw(MemoryError()))
    assert len(pool) == 0


def test_threads_share_one_thing():
    made = []
    pool = Shared()

    def use():
        for _ in range(200):
            pool.take("w", lambda: made.append(1))

    threads = [threading.Thread(target=use) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert (len(made), pool.users("w")) == (1, 1600)


def test_keys_follow_content():
    a = np.arange(6, dtype=np.float32)
    assert content_key(a) == content_key(a.copy()) == content_key(a.reshape(2, 3))
    assert content_key(a) != content_key(a + 1)
    assert content_key(a[::2]) == content_key(np.array([0, 2, 4], np.float32))
