"""A node whose machine gets another address while it runs, in a network namespace."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from hyperscale.wire.cluster_secret import make_secret
from tests.lab.nodes import NodeCluster, deaths, wait_for_view
from tests.lab.waiting import until

_SETUP = """
ip link set lo up
ip tuntap add dev t0 mode tun
ip link set t0 up
ip addr add 10.71.0.1/24 dev t0
ip route add default dev t0
"""


def can_make_namespaces() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-n", "sh", "-ec", _SETUP], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.skipif(not can_make_namespaces(), reason="needs root, ip and network namespaces")
def test_members_learn_the_new_address_of_a_running_node(tmp_path: Path) -> None:
    """The node listens on all addresses and advertises the outward one, which changes."""
    holder = subprocess.Popen(
        ["unshare", "-n", "sh", "-ec", _SETUP + "echo up\nexec sleep 3600"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "up\n"
        inside = ("nsenter", f"--net=/proc/{holder.pid}/ns/net")
        options = {"wrap": inside, "environment": {"HYPERSCALE_SECRET": make_secret()}}
        with NodeCluster(tmp_path) as cluster:
            home = cluster.start("manager", "m0", **options).wait_listening()
            roamer = cluster.start(
                "worker", "w0", "--host", "0.0.0.0", "--seed", home.address, **options
            ).wait_listening()
            assert roamer.address.startswith("10.71.0.1:")
            wait_for_view([home, roamer])
            for change in ("addr add 10.72.0.2/24", "addr del 10.71.0.1/24"):
                subprocess.run([*inside, "ip", *change.split(), "dev", "t0"], check=True)
            moved = f"10.72.0.2:{roamer.port}"
            until(
                lambda: roamer.seen("node.moved", address=moved),
                what="the node logged its new address",
            )
            until(lambda: moved in home.members_text(), what="the other node knows the new address")
            wait_for_view([home, roamer])
            assert not deaths([home, roamer])
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
