"""Servers that no Debian package has: installed once, with fixed versions, into a cache directory.

    python -m tests.services.downloads

installs what is missing. Each recipe has its version in the name of its directory, so that a new
version is installed beside the old one.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hyperscale-test-servers"

_GO_MAIN = """\
//go:build tools

package tools

import _ "{package}"
"""


def _statsd(place: Path) -> None:
    _run(place, "npm", "install", "--no-audit", "--no-fund", "--omit=optional", "statsd@0.9.0")


def _go(module: str, version: str, package: str) -> Callable[[Path], None]:
    """Return a recipe that builds a program of a Go module."""

    def build(place: Path) -> None:
        _run(place, "go", "mod", "init", "servers")
        _run(place, "go", "get", f"{module}@{version}")
        (place / "tools.go").write_text(_GO_MAIN.format(package=package))
        _run(place, "go", "build", "-mod=mod", "-o", "server", package)

    return build


_FERRETDB_MAIN = """\
package main

import (
	"context"
	"os"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	server, err := ferretdb.New(&ferretdb.Config{
		Listener:  ferretdb.ListenerConfig{TCP: os.Args[1]},
		Handler:   "sqlite",
		SQLiteURL: os.Args[2],
	})
	if err != nil {
		panic(err)
	}
	if err = server.Run(context.Background()); err != nil {
		panic(err)
	}
}
"""


def _ferretdb(place: Path) -> None:
    """Build FerretDB from its package: its own command wants files that only a checkout has."""
    _run(place, "go", "mod", "init", "servers")
    _run(place, "go", "get", "github.com/FerretDB/FerretDB@v1.24.0")
    (place / "main.go").write_text(_FERRETDB_MAIN)
    _run(place, "go", "build", "-mod=mod", "-o", "server", ".")


_POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>servers</groupId><artifactId>servers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


def _maven(group: str, artifact: str, version: str) -> Callable[[Path], None]:
    """Return a recipe that fetches a Java program with everything it needs into `jars`."""

    def fetch(place: Path) -> None:
        pom = _POM.format(group=group, artifact=artifact, version=version)
        (place / "pom.xml").write_text(pom)
        goal = "dependency:copy-dependencies"
        jars = f"-DoutputDirectory={place / 'jars'}"
        _run(place, "mvn", "-q", "-B", goal, "-DincludeScope=runtime", jars)

    return fetch


RECIPES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "statsd": ("0.9.0", _statsd),
    "cassandra": ("5.0.2", _maven("org.apache.cassandra", "cassandra-all", "5.0.2")),
    "kafka": ("3.9.1", _maven("org.apache.kafka", "kafka_2.13", "3.9.1")),
    "ferretdb": ("1.24.0", _ferretdb),
    "fake-gcs-server": (
        "1.52.2",
        _go("github.com/fsouza/fake-gcs-server", "v1.52.2", "github.com/fsouza/fake-gcs-server"),
    ),
    "bigtable": (
        "1.37.0",
        _go("cloud.google.com/go/bigtable", "v1.37.0", "cloud.google.com/go/bigtable/cmd/emulator"),
    ),
}


def cached(name: str) -> Path:
    """Return the directory of a server; fails with the command that installs it."""
    place = _place(name)
    assert place.is_dir(), f"{name} is not installed: run `make test-deps`"
    return place


def _place(name: str) -> Path:
    return CACHE / f"{name}-{RECIPES[name][0]}"


def install(name: str) -> None:
    place = _place(name)
    if place.is_dir():
        return
    building = place.with_name(f"{place.name}.{os.getpid()}.tmp")
    building.mkdir(parents=True)
    try:
        RECIPES[name][1](building)
        building.rename(place)  # whole or not at all
    except OSError:
        if not place.is_dir():  # else another process has installed the same version meanwhile
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _run(place: Path, *command: str) -> None:
    subprocess.run(command, cwd=place, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    for each in sys.argv[1:] or RECIPES:
        install(each)
