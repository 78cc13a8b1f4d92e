"""PostgreSQL, Redis, MariaDB, and MongoDB's protocol by FerretDB.

Client libraries are imported when they are used: every test run imports this module.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.services.base import PASSWORD, QUOTED, Service, tool
from tests.services.downloads import cached


class Postgres(Service):
    """PostgreSQL with pg_stat_statements, which counts every statement."""

    name = "postgres"
    account = "postgres"

    @property
    def url(self) -> str:
        return f"postgresql://load:{QUOTED}@127.0.0.1:{self.port}/shop"

    def _program(self, name: str) -> str:
        homes = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        return str(homes[-1] / name) if homes else tool(name)

    def install(self) -> None:
        secret = self.directory / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        data = str(self.directory / "data")
        self.run(
            *(self._program("initdb"), "-D", data, "-U", "load", f"--pwfile={secret}"),
            *("--auth=scram-sha-256", "--no-sync", "-E", "UTF8"),
        )

    def command(self) -> list[str]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
            "max_connections": "40",
            "shared_preload_libraries": "pg_stat_statements",
            "pg_stat_statements.save": "on",
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._program("postgres"), "-D", str(self.directory / "data"), *flags]

    def environment(self) -> dict[str, str]:
        return {"PGPASSWORD": PASSWORD}

    def is_ready(self) -> bool:
        command = [self._program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, check=False).returncode == 0

    def set_up(self) -> None:
        self.psql("CREATE DATABASE shop", database="postgres")
        self.psql("CREATE EXTENSION pg_stat_statements")
        self.psql("CREATE TABLE items (id int PRIMARY KEY, name text, stock int)")
        self.psql("INSERT INTO items SELECT n, 'item ' || n, 100 FROM generate_series(1, 100) n")

    def psql(self, sql: str, *, database: str = "shop") -> str:
        place = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "load", "-d", database)
        return self.run("psql", "-qtAX", *place, "-c", sql).strip()


class Redis(Service):
    """Redis with a password; it counts every command."""

    name = "redis"

    @property
    def url(self) -> str:
        return f"redis://:{QUOTED}@127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        return [
            *(tool("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"),
            *("--dir", str(self.directory), "--requirepass", PASSWORD, "--save", ""),
            *("--appendonly", "yes", "--appendfsync", "no"),
        ]

    def is_ready(self) -> bool:
        return self._ask("PING") == "PONG"

    def cli(self, *command: str) -> str:
        return self._ask(*command)

    def _ask(self, *command: str) -> str:
        place = ("-h", "127.0.0.1", "-p", str(self.port), "-a", PASSWORD, "--no-auth-warning")
        done = subprocess.run(
            [tool("redis-cli"), *place, *command], capture_output=True, text=True, check=False
        )
        return done.stdout.strip()


class MariaDB(Service):
    name = "mysql"

    @property
    def url(self) -> str:
        return f"mysql://load@127.0.0.1:{self.port}/shop"

    @property
    def client_url(self) -> str:
        return f"mysql://load:{QUOTED}@127.0.0.1:{self.port}/shop"

    # It refuses to be root unless it is told to.
    _flags = ("--user=root",) if os.getuid() == 0 else ()

    def install(self) -> None:
        self.run(
            *(tool("mariadb-install-db"), "--no-defaults", "--skip-test-db"),
            *(f"--datadir={self.directory / 'data'}", "--auth-root-authentication-method=normal"),
            *self._flags,
        )

    def command(self) -> list[str]:
        return [
            *(tool("mariadbd"), "--no-defaults", f"--datadir={self.directory / 'data'}"),
            *(f"--port={self.port}", "--bind-address=127.0.0.1", "--skip-name-resolve"),
            *(f"--socket={self.directory / 'socket'}", "--innodb-flush-log-at-trx-commit=0"),
            *self._flags,
        ]

    def is_ready(self) -> bool:
        return self._client("SELECT 1").returncode == 0

    def set_up(self) -> None:
        done = self._client(
            f"CREATE DATABASE shop; CREATE USER 'load'@'%' IDENTIFIED BY '{PASSWORD}'; "
            "GRANT ALL ON shop.* TO 'load'@'%'; "
            "CREATE TABLE shop.items (id int PRIMARY KEY, name varchar(40)); "
            "INSERT INTO shop.items VALUES (1, 'item 1')"
        )
        assert done.returncode == 0, done.stderr

    def rows(self, query: str) -> list[list[Any]]:
        """Return the rows of a query as lists of text."""
        done = self._client(query, "shop")
        assert done.returncode == 0, done.stderr
        return [line.split("\t") for line in done.stdout.splitlines()]

    def _client(self, sql: str, database: str = "mysql") -> "subprocess.CompletedProcess[str]":
        place = ["--no-defaults", "-u", "root", f"--socket={self.directory / 'socket'}"]
        command = [tool("mariadb"), *place, "-N", "-B", database, "-e", sql]
        return subprocess.run(command, capture_output=True, text=True, check=False)


class FerretDB(Service):
    """MongoDB's wire protocol over SQLite; it checks no passwords."""

    name = "mongodb"

    @property
    def url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [
            str(cached("ferretdb") / "server"),
            f"127.0.0.1:{self.port}",
            f"file:{self.directory}/",
        ]

    @property
    def client_url(self) -> str:
        return f"mongodb://127.0.0.1:{self.port}/shop?directConnection=true"

    def commands(self, name: str) -> int:
        """Return how many commands of this name the server has served."""
        from pymongo import MongoClient  # noqa: PLC0415  an extra

        with MongoClient[dict[str, Any]](self.url) as client:
            served = client["admin"].command("serverStatus")["metrics"]["commands"]
            return int(served.get(name, {}).get("total", 0))

    def documents(self, collection: str, query: dict[str, Any]) -> list[dict[str, Any]]:
        from pymongo import MongoClient  # noqa: PLC0415  an extra

        with MongoClient[dict[str, Any]](self.url) as client:
            return list(client["hyperscale"][collection].find(query))
