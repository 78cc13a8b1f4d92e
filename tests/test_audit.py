"""`make audit` never passes silently: what could not be checked is named and fails it."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.figures import ROOT

LOCKED = "sample==1.2.0 \\\n    --hash=sha256:00\n"


class Index(BaseHTTPRequestHandler):
    """A package index with one record, served at any address that `answers` names."""

    answers: dict[str, object]

    def do_GET(self) -> None:
        body = self.answers.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        if body is not None:
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def index() -> Iterator[ThreadingHTTPServer]:
    Index.answers = {}
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def audit(tmp_path: Path, port: int) -> tuple[int, str]:
    lock = tmp_path / "locked.txt"
    lock.write_text(LOCKED)
    done = subprocess.run(
        [sys.executable, ROOT / "requirements" / "audit.py", lock],
        env={
            **os.environ,
            "PIP_INDEX_URL": f"http://127.0.0.1:{port}/simple",
            "no_proxy": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


def record(version: str, *vulnerabilities: object) -> dict[str, object]:
    return {"info": {"version": version}, "vulnerabilities": list(vulnerabilities)}


def test_a_version_without_known_vulnerabilities_passes(
    tmp_path: Path, index: ThreadingHTTPServer
) -> None:
    Index.answers = {"/pypi/sample/1.2.0/json": record("1.2.0")}
    code, text = audit(tmp_path, index.server_port)
    assert code == 0
    assert "1 of 1 checked" in text


def test_a_known_vulnerability_fails_the_audit(tmp_path: Path, index: ThreadingHTTPServer) -> None:
    known = {"id": "PYSEC-1", "aliases": ["CVE-1"], "summary": "bad", "fixed_in": ["1.3.0"]}
    Index.answers = {"/pypi/sample/json": record("1.2.0", known)}
    code, text = audit(tmp_path, index.server_port)
    assert code == 1
    assert "VULNERABLE   sample 1.2.0: PYSEC-1, CVE-1: bad (fixed in 1.3.0)" in text


def test_a_withdrawn_vulnerability_does_not_count(
    tmp_path: Path, index: ThreadingHTTPServer
) -> None:
    withdrawn = {"id": "PYSEC-1", "withdrawn": "2026-01-01T00:00:00Z"}
    Index.answers = {"/pypi/sample/json": record("1.2.0", withdrawn)}
    assert audit(tmp_path, index.server_port)[0] == 0


def test_an_index_that_only_knows_another_version_fails_the_audit(
    tmp_path: Path, index: ThreadingHTTPServer
) -> None:
    Index.answers = {"/pypi/sample/json": record("1.3.0")}
    code, text = audit(tmp_path, index.server_port)
    assert code == 2
    assert "NOT CHECKED  sample 1.2.0: the package index only tells about 1.3.0" in text


def test_an_index_that_does_not_answer_fails_the_audit(
    tmp_path: Path, index: ThreadingHTTPServer
) -> None:
    port = index.server_port
    index.server_close()
    code, text = audit(tmp_path, port)
    assert code == 2
    assert "NOT CHECKED  sample 1.2.0: the package index does not answer" in text
