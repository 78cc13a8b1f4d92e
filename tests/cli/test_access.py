"""Viewers, submitters, operators and strangers use every command against real nodes."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperscale.cli import ledger
from hyperscale.cli.command_line import COMMANDS, run_command_line
from hyperscale.cli.parser import Parser
from hyperscale.wire.client_access import GRANTED, ClientRole, Permission
from hyperscale.wire.registry import REGISTRY
from tests import access_table
from tests.access_table import LOCAL, OF_CLUSTER, OF_NO_COMMAND, permission_of
from tests.lab.command import write
from tests.lab.nodes import NodeCluster, NodeProcess
from tests.lab.waiting import until

PEOPLE = {
    "vera": ClientRole.VIEWER,
    "alice": ClientRole.SUBMITTER,
    "bob": ClientRole.SUBMITTER,
    "olga": ClientRole.OPERATOR,
    "sam": None,
}
_REFUSED = re.compile(r"has the role (\w+), but \w+ needs|belongs to alice|refused this client")
_OF_GATES = ("datacenters", "route")

Use = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    """A gate and a manager that know their clients; no worker, so that jobs wait."""
    directory = tmp_path_factory.mktemp("access")
    lines = []
    for name, role in {**PEOPLE, "carl": ClientRole.SUBMITTER}.items():
        secret = f"the very own secret of {name}"
        _private(directory / name, secret)
        if role is not None:
            quota = "jobs = 2\n" if name == "carl" else ""
            lines.append(f'[{name}]\nrole = "{role}"\nsecret = "{secret}"\n{quota}')
    clients = _private(directory / "clients.toml", "\n".join(lines))
    secret = _private(directory / "secret", "the secret that only nodes have")
    flags = ("--secret-file", str(secret), "--clients-file", str(clients))
    with NodeCluster(directory) as cluster:
        gate = cluster.start("gate", "g0", *flags).wait_listening()
        seeds = ("--gates-seeds", gate.address)
        manager = cluster.start("manager", "m0", *flags, *seeds).wait_listening()
        for node in (gate, manager):
            until(lambda node=node: node.get("/readyz")[0] == 200, what=f"{node.name} is ready")
        yield [gate, manager]


def _private(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


@pytest.fixture
def use(nodes: list[NodeProcess], capsys: pytest.CaptureFixture[str]) -> Use:
    """Run a command as somebody; return its exit code and what it printed."""
    gate, manager = nodes

    def run(name: str, *words: str) -> tuple[int, str]:
        flags = ["--secret-file", str(gate._log_path.parent / name)]
        if words[0] in _OF_GATES:
            flags += ["--gate", gate.address]
        else:
            flags += ["--manager", manager.address]
        capsys.readouterr()
        code = run_command_line([*words, *flags])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


@pytest.fixture(scope="module")
def test_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    body = """
    class Shop(Workflow):
        vus = 2
        duration = "1m"

        @step()
        async def home(self, url: URL = "http://127.0.0.1:9/") -> HTTPResponse:
            return await self.client.http.get(url)
    """
    return str(write(tmp_path_factory.mktemp("test") / "shop.py", body))


def submitted(use: Use, name: str, test_file: str) -> str:
    code, printed = use(name, "submit", test_file, "--detach")
    assert code == 0, printed
    found = re.search(r"\S+\.\d+-[a-z0-9]{20}", printed)
    assert found, printed
    return found[0]


def words_of(command: str, test_file: str, job: str, ended: str, out: Path) -> list[str]:
    """Return a command line that does no harm to the cluster if it is permitted."""
    arguments = {
        "submit": [test_file, "--detach"],
        "watch": [ended],
        "status": [job],
        "results": [ended],
        "cancel": [job],
        "scale": [job, "--vus", "3"],
        "pause": [job],
        "resume": [job],
        "datacenters drain": ["default"],
        "datacenters resume": ["default"],
        "datacenters remove": ["nowhere"],
        "route": [test_file],
        "drain": ["m0"],
        "ledger members": ["promote", "m0"],
        "ledger backup": ["--out", str(out / "backup")],
    }
    return [*command.split(), *arguments.get(command, [])]


@pytest.mark.parametrize("command", OF_CLUSTER)
def test_a_command_is_for_those_whose_role_permits_it(
    command: str, use: Use, test_file: str, tmp_path: Path
) -> None:
    permission = permission_of(command)
    job = ended = ""
    if permission is Permission.OWN or command in {"watch", "status"}:
        job = submitted(use, "alice", test_file)
        ended = submitted(use, "alice", test_file)
        assert use("alice", "cancel", ended)[0] == 0
    for name, role in PEOPLE.items():
        out = tmp_path / name
        out.mkdir()
        is_permitted = role is not None and permission in GRANTED[role]
        if permission is Permission.OWN and name == "bob":
            is_permitted = False  # the job belongs to alice
        code, printed = use(name, *words_of(command, test_file, job, ended, out))
        assert (_REFUSED.search(printed) is None) is is_permitted, (name, printed)
        if not is_permitted:
            assert code == 2, (name, printed)


def test_every_command_is_in_the_table() -> None:
    known = [*OF_CLUSTER, *LOCAL]
    assert {command.split()[0] for command in known} == set(COMMANDS)
    parser = Parser()
    ledger.add_arguments(parser)
    (actions,) = (each.choices for each in parser._actions if each.metavar == "ACTION")
    of_ledger = {command.split()[1] for command in known if "ledger " in command}
    assert of_ledger == set(actions or ())


def test_every_message_of_clients_is_sent_by_a_command() -> None:
    of_clients = {
        spec.type
        for spec in REGISTRY.by_kind.values()
        if spec.permission is not None and spec.type.__module__.startswith("hyperscale.")
    }
    sent = {message for messages in OF_CLUSTER.values() for message in messages}
    assert of_clients == sent | OF_NO_COMMAND


def test_the_document_shows_the_table() -> None:
    text = access_table.DOCUMENT.read_text()
    assert access_table.drawn() in text, "run `python -m tests.access_table` to draw it again"
    assert text == access_table.redrawn(text)


def test_a_submitter_beyond_its_quota_is_refused(use: Use, test_file: str) -> None:
    jobs = [submitted(use, "carl", test_file) for _ in range(2)]
    code, printed = use("carl", "submit", test_file, "--detach")
    assert code == 2
    assert "carl has 2 of 2 jobs that may run or wait" in printed
    assert use("olga", "cancel", jobs[0])[0] == 0
    submitted(use, "carl", test_file)


def test_the_audit_says_who_did_what_page_by_page(use: Use, test_file: str) -> None:
    job = submitted(use, "alice", test_file)
    for name, words in (
        ("alice", ("scale", job, "--vus", "3")),
        ("olga", ("cancel", job)),
        ("olga", ("cancel", job)),  # changes nothing
        ("olga", ("ledger", "snapshot")),
    ):
        assert use(name, *words)[0] == 0, words
    pages: list[dict[str, Any]] = []
    after = ""
    while not pages or after:
        flags = ("--json", "--limit", "3", "--since", "1h", *(("--after", after) if after else ()))
        code, printed = use("olga", "ledger", "audit", *flags)
        assert code == 0, printed
        page = json.loads(printed)
        pages += page["entries"]
        after = page["after"]
    places = [(entry["group"], entry["index"]) for entry in pages]
    assert len(set(places)) == len(places)
    assert all(entry["is_proven"] for entry in pages)
    of_job = [entry for entry in pages if entry["subject"] == job]
    assert [(entry["by"], entry["role"], entry["action"]) for entry in of_job] == [
        ("alice", "submitter", "submit"),
        ("alice", "submitter", "scale"),
        ("olga", "operator", "cancel"),
    ]
    assert pages[-1]["action"] == "snapshot"
    shown = use("olga", "ledger", "audit", "--limit", "1")[1]
    assert re.search(r"^TIME +BY +ROLE +ACTION +SUBJECT +DETAIL", shown)
    assert "there is more: --after " in shown
    for wrong in (("--after", "x"), ("--limit", "0"), ("--since", "soon")):
        assert use("olga", "ledger", "audit", *wrong)[0] == 2


def test_all_ended_jobs_are_listed_page_by_page(use: Use, test_file: str) -> None:
    ended = [submitted(use, "alice", test_file) for _ in range(3)]
    for job in ended:
        assert use("alice", "cancel", job, "--reason", f"not {job}")[0] == 0
    until(
        lambda: all(job in use("vera", "jobs", "--since", "1h")[1] for job in ended),
        what="the jobs have ended",
    )
    found: list[dict[str, Any]] = []
    after = ""
    while not found or after:
        flags = ("--since", "1h", "--limit", "2", *(("--after", after) if after else ()))
        code, printed = use("vera", "jobs", "--json", *flags)
        assert code == 0, printed
        page = json.loads(printed)
        assert len(page["jobs"]) <= 2
        found += page["jobs"]
        after = page["after"]
    listed = [job["job"] for job in found]
    assert len(set(listed)) == len(listed)
    assert set(listed[-3:]) == set(ended)
    assert [(job["status"], job["by"]) for job in found[-3:]] == [("cancelled", "alice")] * 3
    shown = use("vera", "jobs", "--since", "1h", "--limit", "1")[1]
    assert re.search(r"^JOB +STATE +ENDED +FILE +BY +REASON", shown)
    assert "there is more: --after " in shown
    assert json.loads(use("vera", "jobs", "--since", "2099-01-01", "--json")[1])["jobs"] == []
    for wrong in (("--since", "soon"), ("--since", "1h", "--live"), ("--after", "1.2.3")):
        assert use("vera", "jobs", *wrong)[0] == 2
