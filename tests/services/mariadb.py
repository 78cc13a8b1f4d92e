"""MariaDB."""

import os
import subprocess
from typing import Any

from tests.services.base import Service, tool
from tests.services.databases import PASSWORD, QUOTED


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
