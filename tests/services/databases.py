"""PostgreSQL, Redis."""

import subprocess
from pathlib import Path

from tests.services.base import Service, tool

PASSWORD = "open sesame/42"
QUOTED = "open%20sesame%2F42"


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
