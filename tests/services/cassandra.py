"""Apache Cassandra: one small node, with a password."""

import time
from pathlib import Path
from typing import Any

from tests.lab.ports import free_port
from tests.services.base import Service, accepts, tool
from tests.services.downloads import cached

# What the scripts of Cassandra pass to Java 17: access to the insides of the platform.
_OPENED = (
    "java.base/java.io java.base/java.lang java.base/java.lang.module "
    "java.base/java.lang.reflect java.base/java.net java.base/java.nio java.base/java.util "
    "java.base/java.util.concurrent java.base/java.util.concurrent.atomic "
    "java.base/jdk.internal.loader java.base/jdk.internal.math java.base/jdk.internal.misc "
    "java.base/jdk.internal.module java.base/jdk.internal.ref java.base/jdk.internal.reflect "
    "java.base/jdk.internal.util.jar java.base/sun.nio.ch java.rmi/sun.rmi.registry "
    "java.rmi/sun.rmi.server java.rmi/sun.rmi.transport java.rmi/sun.rmi.transport.tcp "
    "java.sql/java.sql java.management/com.sun.jmx.remote.security "
    "jdk.management/com.sun.management.internal jdk.attach/sun.tools.attach "
    "jdk.compiler/com.sun.tools.javac.file "
)


class Cassandra(Service):
    name = "cassandra"
    start_s = 90.0

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.storage_port = free_port()

    @property
    def url(self) -> str:
        return f"cassandra://127.0.0.1:{self.port}"

    def install(self) -> None:
        place = self.directory
        (place / "cassandra.yaml").write_text(
            f"""
cluster_name: test
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
commitlog_sync: periodic
commitlog_sync_period: 10s
data_file_directories: ["{place}/data"]
commitlog_directory: {place}/commitlog
saved_caches_directory: {place}/caches
hints_directory: {place}/hints
cdc_raw_directory: {place}/cdc
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "127.0.0.1:{self.storage_port}"}}]
listen_address: 127.0.0.1
storage_port: {self.storage_port}
rpc_address: 127.0.0.1
native_transport_port: {self.port}
endpoint_snitch: SimpleSnitch
authenticator: PasswordAuthenticator
memtable_heap_space: 32MiB
memtable_offheap_space: 32MiB
commitlog_total_space: 64MiB
"""
        )
        (place / "logback.xml").write_text("<configuration/>")

    def command(self) -> list[str]:
        opened = [
            f"--add-{what}={package}=ALL-UNNAMED"
            for package in _OPENED.split()
            for what in ("opens", "exports")
        ]
        return [
            *(tool("java"), "-Xms256m", "-Xmx512m", "-XX:TieredStopAtLevel=1", *opened),
            f"-Dcassandra.config=file://{self.directory}/cassandra.yaml",
            f"-Dcassandra.storagedir={self.directory}",
            f"-Dlogback.configurationFile={self.directory}/logback.xml",
            *("-Dcassandra-foreground=yes", "-Dcassandra.superuser_setup_delay_ms=0"),
            *("-Dcassandra.skip_wait_for_gossip_to_settle=0", "-Dcassandra.ring_delay_ms=1"),
            "-Dcassandra.jmx.local.port=" + str(free_port()),
            *("-cp", f"{cached('cassandra')}/jars/*"),
            "org.apache.cassandra.service.CassandraDaemon",
        ]

    def is_ready(self) -> bool:
        return accepts(self.port)

    def session(self) -> Any:
        """Return a cluster of the driver; the caller shuts it down."""
        from cassandra.auth import PlainTextAuthProvider  # noqa: PLC0415  an extra
        from cassandra.cluster import Cluster  # noqa: PLC0415  an extra

        login = PlainTextAuthProvider("cassandra", "cassandra")
        return Cluster(["127.0.0.1"], port=self.port, auth_provider=login)

    def query(self, *statements: str) -> list[Any]:
        cluster = self.session()
        try:
            session = cluster.connect()
            found: list[Any] = []
            for statement in statements:
                found = list(session.execute(statement))
            return found
        finally:
            cluster.shutdown()

    def set_up(self) -> None:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
        create = f"CREATE KEYSPACE IF NOT EXISTS hyperscale WITH replication = {replication}"
        until_s = time.monotonic() + 30
        while True:
            try:
                self.query(create)
                return
            except Exception:  # the first superuser is created after the port opens
                if time.monotonic() > until_s:
                    raise
                time.sleep(0.2)  # between two looks at another program
