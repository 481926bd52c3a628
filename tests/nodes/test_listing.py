"""Listing files below a folder: right, and not looked up again for nothing."""

from __future__ import annotations

import os

import pytest


@pytest.fixture
def listing(pack):
    return pack("host.listing")


def test_a_new_and_a_removed_file_are_seen(listing, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.safetensors").touch()
    look = lambda: listing.files_under(str(tmp_path), ".safetensors", 2)  # noqa: E731
    assert look() == ["a/one.safetensors"]
    (tmp_path / "a" / "two.safetensors").touch()
    (tmp_path / "b.safetensors").touch()
    assert look() == ["a/one.safetensors", "a/two.safetensors", "b.safetensors"]
    (tmp_path / "a" / "one.safetensors").unlink()
    assert look() == ["a/two.safetensors", "b.safetensors"]


def test_nothing_is_searched_again_while_nothing_changes(listing, tmp_path, monkeypatch):
    (tmp_path / "one.safetensors").touch()
    scans = []
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda folder: (scans.append(folder), scandir(folder))[1])
    first = listing.files_under(str(tmp_path), ".safetensors", 3)
    first.append("a caller may do with its list what it likes")
    assert scans
    scans.clear()
    assert listing.files_under(str(tmp_path), ".safetensors", 3) == ["one.safetensors"]
    assert scans == []


def test_depth_counts_the_folder_itself(listing, tmp_path):
    deep = tmp_path / "1" / "2"
    deep.mkdir(parents=True)
    (deep / "x.safetensors").touch()
    assert listing.files_under(str(tmp_path), ".safetensors", 2) == []
    assert listing.files_under(str(tmp_path), ".safetensors", 3) == ["1/2/x.safetensors"]


def test_a_folder_that_is_missing_holds_nothing_until_it_is_there(listing, tmp_path):
    folder = tmp_path / "later"
    assert listing.files_under(str(folder), ".safetensors", 2) == []
    folder.mkdir()
    (folder / "x.safetensors").touch()
    assert listing.files_under(str(folder), ".safetensors", 2) == ["x.safetensors"]
