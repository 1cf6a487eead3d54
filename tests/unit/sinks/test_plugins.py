"""Plug-ins: a real little distribution, installed into a directory of its own, and everything that can be wrong with one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sinks.embedded import EdgeWake
from sinks.errors import BrokenPlugin
from sinks.interfaces import Applied, Sink
from sinks.plugins import check_named, left_out, load_all, load_one
from store.io.wakeup import EDGE_WAKE, Sleeper
from tests.support.distributions import example, installer

ROOT = Path(__file__).parents[3]
BATCH = Applied(
    sequence=7, now_ms=1, half_cursor=2, op_cursor=2, round_no=0, check_end=0, proposal_end=0, discard_end=0, quarantine_end=0,
    released=2, rolled_back=0,
)  # fmt: skip


@pytest.fixture
def install(tmp_path, monkeypatch):
    return installer(tmp_path / "site", monkeypatch)


def test_the_worked_example_of_the_docs(install, tmp_path):
    text = (ROOT / "docs" / "plugins.md").read_text()
    points = re.findall(r'```toml\n.*?(\[project\.entry-points\."escrow\.sinks"\]\naudit = "(.*?)"\n)```', text, re.DOTALL)
    install("escrow-audit", f"[escrow.sinks]\naudit = {points[0][1]}\n", escrow_audit=example("escrow_audit"))
    [(name, sink)] = load_all("escrow.sinks", ["escrow-audit"], tmp_path / "store")
    assert (name, isinstance(sink, Sink)) == ("audit", True)
    for _ in range(2):  # told twice, as after a crash: written once
        sink.applied(BATCH)
    sink.close()
    assert (tmp_path / "audit.csv").read_text() == "7,2,0\n"


def test_nobody_installed_any():
    assert load_all("escrow.check_transports", [], Path()) == []
    assert load_one("escrow.transaction_service", [], Path()) is None
    assert left_out([]) == []


SINK = """
class Made:
    def __init__(self, root): pass
    def applied(self, batch): pass
    def close(self): pass
"""


def test_what_is_installed_and_not_named_is_not_even_imported(install):
    """The code of a package that came with another one does not run here by that alone."""
    install("stranger", "[escrow.sinks]\nmine = stranger:make\n", stranger="raise SystemExit('it ran')")
    install("mine", "[escrow.sinks]\nmine = my_sink:Made\n", my_sink=SINK)
    assert load_all("escrow.sinks", [], Path()) == []
    assert [name for name, _ in load_all("escrow.sinks", ["mine"], Path())] == ["mine"]
    assert left_out(["mine"]) == [
        'plug-in stranger (escrow.sinks: mine) is installed and not used: add "stranger" to plugins, or uninstall it'
    ]


@pytest.mark.parametrize("named", ["Their_Sinks", "their-sinks:b", "their.sinks:b"])
def test_a_distribution_is_named_or_one_entry_point_of_it(install, named):
    install("their-sinks", "[escrow.sinks]\na = their_sinks:Made\nb = their_sinks:Made\n", their_sinks=SINK)
    check_named([named])
    found = [name for name, _ in load_all("escrow.sinks", [named], Path())]
    assert found == (["b"] if ":" in named else ["a", "b"])
    assert bool(left_out([named])) == (":" in named)


@pytest.mark.parametrize("named", ["a", "their-sink", "their-sinks:c", ":a", ""])
def test_a_name_for_which_nothing_is_installed_is_refused(install, named):
    install("their-sinks", "[escrow.sinks]\na = their_sinks:Made\n", their_sinks=SINK)
    with pytest.raises(BrokenPlugin, match=f"plugins: {named}: no such plug-in is installed \\(installed: their-sinks\\)"):
        check_named(["their-sinks", named])


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("import no_such_module", "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        ("", "cannot be imported: AttributeError"),
        ("make = 3", "names a int, not something that can be called"),
        ("def make(root): raise OSError('no disk')", "could not be made: OSError: no disk"),
        ("def make(): return None", "could not be made: TypeError"),
        ("class make:\n    def __init__(self, root): pass\n    def applied(self, batch): pass", "is no Sink: it has no close()"),
    ],
)
def test_a_broken_one_is_named(install, module, says):
    install("their-sink", "[escrow.sinks]\nbroken = their_sink:make\n", their_sink=module)
    with pytest.raises(BrokenPlugin) as caught:
        load_all("escrow.sinks", ["their-sink"], Path())
    text = str(caught.value)
    assert text.startswith("plug-in broken = their_sink:make (escrow.sinks) of their-sink 1.2: ")
    assert says in text
    assert "\n" not in text


def test_two_with_one_name_or_two_where_one_may_be(install):
    install("first", "[escrow.sinks]\nsame = first:make\n[escrow.check_listeners]\na = first:Listener\n", first="")
    install("second", "[escrow.sinks]\nsame = second:make\n", second="")
    with pytest.raises(BrokenPlugin, match="has the same name: take one of them out of plugins"):
        load_all("escrow.sinks", ["first", "second"], Path())
    service = "class S:\n" + "".join(
        f"    def {name}(self, *a): return a\n" for name in ("open", "prepare", "commit", "rollback", "check", "close")
    )
    install(
        "services",
        "[escrow.transaction_service]\na = services:make\nb = services:make\n",
        services=service + "def make(root, inner): return S()",
    )
    with pytest.raises(BrokenPlugin, match="there can be one, but plugins names a, b"):
        load_one("escrow.transaction_service", ["services"], Path(), None)


def test_the_edge_is_woken_when_there_is_something_for_it(tmp_path):
    sleeper, sink = Sleeper(tmp_path / EDGE_WAKE), EdgeWake(tmp_path)
    sink.applied(BATCH)
    assert sleeper.wait(1)
    sink.applied(Applied(**{**{name: getattr(BATCH, name) for name in Applied.__slots__}, "released": 0}))
    assert not sleeper.wait(0)
    sink.close()
    sleeper.close()
