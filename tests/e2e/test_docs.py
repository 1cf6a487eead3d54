"""Every command and every piece of Python on every page, against the whole service. tests/support/pages.py has the convention."""

from __future__ import annotations

import pytest

from tests.support.pages import PageRun, blocks, pages

PAGES = [page for page in pages() if any(block.runs_here for block in blocks(page))]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of(page, run, ports, tmp_path):
    environ = {"ESCROW_LISTEN_PORT": str(ports["7480"]), "ESCROW_JOB_METRICS_PORT": str(ports["7482"])}
    environ["ESCROW_URL"] = f"http://127.0.0.1:{ports['7480']}"
    made = PageRun(tmp_path / "page", run.data, ports, environ)
    try:
        assert made.run(page) > 0
    finally:
        made.close()
