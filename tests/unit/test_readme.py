from __future__ import annotations

from store.verify import verify
from tests.support.readme import example


def test_the_store_example_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(example("EdgeStore(root)"), "README.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == ["accepted", "0 0 b'order 42'"]
    assert verify(tmp_path / "first-store").problems == []
