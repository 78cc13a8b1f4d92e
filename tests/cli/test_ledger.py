"""`hyperscale ledger` and `hyperscale drain` against real managers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hyperscale.jobs.committed.events import CancelRequested
from tests.lab.command import CommandOutcome
from tests.lab.command import run as command
from tests.lab.job_builders import submission
from tests.lab.ledger_clients import Forwarder
from tests.lab.ledger_clients import run as work
from tests.lab.manager_tier import ManagerTier
from tests.lab.nodes import NodeCluster
from tests.lab.waiting import until


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagerTier]:
    """A tier of one manager."""
    with NodeCluster(tmp_path_factory.mktemp("tier")) as cluster:
        tier = ManagerTier(cluster, 1)
        tier.wait_settled()
        yield tier


@pytest.fixture
def ask(tier: ManagerTier, tmp_path: Path) -> Any:
    def query(*words: str) -> CommandOutcome:
        return command(*words, "--connect", tier.addresses[0], cwd=tmp_path)

    return query


@pytest.fixture(scope="module")
def job(tier: ManagerTier) -> str:
    """A job with two committed events."""

    async def make(forwarder: Forwarder) -> str:
        _, reply = await forwarder.commit(submission("cli"))
        await forwarder.commit(CancelRequested(job=reply.job, reason="not wanted", by="me"))
        return reply.job

    made: str = work(make, tier.addresses)
    return made


def test_status_shows_groups_and_roles(ask: Any) -> None:
    done = ask("ledger", "status")
    assert done.code == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert " ".join(head.split()) == "GROUP ROLE TERM LEADER COMMIT APPLIED LAG LOG VOTERS"
    assert [row.split()[:2] for row in rows[:2]] == [["0", "leader"], ["1", "leader"]]
    reply = json.loads(ask("ledger", "status", "--json").stdout)
    assert [row["voters"] for row in reply["replicas"]] == [["m0"], ["m0"]]


def test_groups_shows_nodes_and_key_slots(ask: Any) -> None:
    reply = json.loads(ask("ledger", "groups", "--json").stdout)
    assert [row["name"] for row in reply["nodes"]] == ["m0"]
    assert sum(row["key_slots"] for row in reply["groups"]) == 1024
    assert re.search(r"^1 +active +1024 +m0 +m0", ask("ledger", "groups").stdout, re.MULTILINE)


def test_history_lists_the_events_of_one_job_and_of_all_jobs(ask: Any, job: str) -> None:
    done = ask("ledger", "history", job)
    assert done.code == 0, done.stderr
    assert "submitted" in done.stdout
    assert "reason=not wanted" in done.stdout
    rows = json.loads(ask("ledger", "history", "--since", "1h", "--json").stdout)
    assert [row["event"] for row in rows if row["job"] == job][:2] == ["submitted", "cancel"]
    assert rows[0]["data"]["key"] == "cli"
    assert json.loads(ask("ledger", "history", "--since", "2099-01-01", "--json").stdout) == []
    first = json.loads(ask("ledger", "history", job, "--limit", "1", "--json").stdout)
    assert len(first) == 1


def test_verify_finds_equal_replicas(ask: Any) -> None:
    done = ask("ledger", "verify")
    assert done.code == 0, done.stdout + done.stderr
    assert "2 of 2 groups: all replicas answered and are equal" in done.stdout
    assert json.loads(ask("ledger", "verify", "--json").stdout)["is_whole"] is True


def test_snapshot_takes_a_snapshot_of_every_group(ask: Any) -> None:
    done = ask("ledger", "snapshot")
    assert done.code == 0, done.stderr
    assert re.findall(r"group (\d): snapshot at entry \d+", done.stdout) == ["0", "1"]


def test_members_are_changed_or_refused_with_a_reason(ask: Any) -> None:
    assert ask("ledger", "members", "add", "m0").stdout == "m0 is active already\n"
    assert ask("ledger", "members", "promote", "m0").code == 0
    assert ask("ledger", "members", "promote", "m0", "--group", "1").code == 0
    for words, message in (
        (("ledger", "members", "add", "m7"), "a manager joins on its own"),
        (("ledger", "members", "remove", "m7"), "the nodes of the ledger are m0"),
        (("ledger", "members", "remove", "m0"), "m0 is the only active manager"),
        (("ledger", "members", "promote", "m0", "--group", "9"), "the ledger has no group 9"),
        (("drain", "m0"), "m0 is the only active manager"),
    ):
        done = ask(*words)
        assert done.code == 3
        assert message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr


def test_invalid_input_is_refused(ask: Any, tmp_path: Path) -> None:
    for words, message in (
        (("ledger", "history", "no-job"), "'no-job' is not a job id"),
        (("ledger", "history", "--since", "soon"), "neither a duration nor a time"),
        (("ledger", "history", "--limit", "0"), "--limit: 0"),
        (("ledger", "members", "marry", "m0"), "invalid choice"),
    ):
        done = ask(*words)
        assert done.code == 2, done.stderr
        assert message in done.stderr
    missing = ask("ledger", "history", "dc1.1-nosuchjob")
    assert missing.code == 3
    assert "the ledger has no events of job" in missing.stderr
    unreachable = command("ledger", "status", "--connect", "127.0.0.1:1", cwd=tmp_path)
    assert unreachable.code == 3
    assert "is a node running there?" in unreachable.stderr
    assert command("ledger", cwd=tmp_path).code == 0  # its help


def test_a_drained_manager_may_be_stopped(tmp_path: Path) -> None:
    with NodeCluster(tmp_path) as cluster:
        tier = ManagerTier(cluster, 2)
        done = command("drain", "m1", "--connect", tier.addresses[0], cwd=tmp_path)
        assert done.code == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "m1 has left the ledger; it may be stopped"
        again = command("drain", "m1", "--connect", tier.addresses[0], cwd=tmp_path)
        assert (again.code, again.stdout) == (0, "m1 has left the ledger; it may be stopped\n")
        assert tier.nodes["m1"].stop() == 0
        assert len(tier.nodes["m1"].seen("ledger.gone")) == 1
        verified = command("ledger", "verify", "--connect", tier.addresses[0], cwd=tmp_path)
        assert verified.code == 0, verified.stdout
        back = tier.start("m1").wait_listening()
        until(lambda: back.seen("ledger.gone"), what="m1 knows that it is not a member")


def test_a_cluster_with_a_secret_refuses_commands_without_it(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("correct horse battery staple")
    with NodeCluster(tmp_path) as cluster:
        node = cluster.start("manager", "m0", "--secret-file", str(secret)).wait_listening()
        flags = ("ledger", "status", "--connect", node.address)
        refused = command(*flags, cwd=tmp_path)
        assert refused.code == 2
        assert "secret" in refused.stderr
        done = command(*flags, "--secret-file", str(secret), cwd=tmp_path)
        assert done.code == 0 or "has not joined its ledger yet" in done.stderr, done.stderr
