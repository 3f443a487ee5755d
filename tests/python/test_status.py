"""`ckptd.status()`: ckptctl's JSON as objects, its exit codes as exceptions. A script stands for ckptctl."""

import pytest

import ckptd


@pytest.fixture
def ckptctl(tmp_path, monkeypatch):
    """Writes a stand-in for ckptctl; gives a function that sets what it does."""
    monkeypatch.setenv("CKPTD_BIN", str(tmp_path / "ckptd"))

    def does(script):
        path = tmp_path / "ckptctl"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return does


def test_fields_become_attributes(ckptctl):
    ckptctl("""echo "{\\"jobs\\": [{\\"name\\": \\"a\\", \\"ranks\\": 2}], \\"arguments\\": \\"$*\\"}" """)
    found = ckptd.status("a", socket="/x/ckptd.sock")
    assert found.jobs[0].name == "a" and found.jobs[0].ranks == 2
    assert found.arguments == "status a -o json --agent /x/admin.sock"


def test_an_agent_that_is_not_healthy_says_why(ckptctl):
    ckptctl("""echo '{"agent": {"problems": [{"text": "full"}]}}'; exit 1""")
    assert ckptd.status(socket="/x/ckptd.sock").agent.problems[0].text == "full"


@pytest.mark.parametrize(
    "code, error", [(3, ckptd.AgentUnreachable), (4, ckptd.NotFound), (1, ckptd.RestoreError)], ids=str
)
def test_exit_codes_become_exceptions(ckptctl, code, error):
    ckptctl(f"echo no luck >&2; exit {code}")
    with pytest.raises(error, match="no luck"):
        ckptd.status(socket="/x/ckptd.sock")
