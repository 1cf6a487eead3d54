"""Every Python block of docs/producers.md and docs/consumers.md runs, in order, and prints what its comments say."""

from __future__ import annotations

import pytest

from tests.support.pages import run_page


@pytest.mark.parametrize("page", ["producers.md", "consumers.md"])
def test_every_block_runs_and_prints_what_it_says(page, escrow, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run_page(page, escrow.port, capsys)
