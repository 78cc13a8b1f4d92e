"""Look up known vulnerabilities of the locked Python packages: `make audit` runs this.

The package index that pip is configured with is asked for every pinned version. A version the
index says nothing about counts as not checked, never as safe.

exit codes: 0 every package was checked and nothing is known against any, 1 at least one package
has a known vulnerability, 2 at least one package could not be checked
"""

import argparse
import json
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pip._internal.models.index import PyPI  # the index that pip uses unless told otherwise

TIMEOUT_S = 20.0
_PINNED = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)")
_NO_ANSWER = (OSError, ValueError)  # network, TLS and HTTP errors; what is not JSON


class Package(NamedTuple):
    name: str
    version: str


class Finding(NamedTuple):
    """What the index says about one package."""

    package: Package
    vulnerabilities: tuple[str, ...] = ()
    not_checked: str = ""  # why; empty if the index answered for this version


def pinned(files: list[Path]) -> list[Package]:
    """Return the packages that these lock files pin."""
    found = {
        Package(match[1], match[2])
        for file in files
        for line in file.read_text(encoding="utf-8").splitlines()
        if (match := _PINNED.match(line))
    }
    return sorted(found)


def pip_setting(name: str) -> str:
    """Return a setting of pip (its files and environment variables), or an empty text."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    values = dict(line.split("=", 1) for line in listed.splitlines() if "=" in line)
    for section in (":env:", "install", "global"):  # the order in which pip prefers them
        if f"{section}.{name}" in values:
            return values[f"{section}.{name}"].strip("'\"")
    return ""


def check(package: Package, index: str, context: ssl.SSLContext) -> Finding:
    """Ask the index about the pinned version, or about the latest if that is the same."""
    try:
        told = _fetch(f"{index}/{package.name}/{package.version}/json", context)
        if told is None:
            told = _fetch(f"{index}/{package.name}/json", context)
    except _NO_ANSWER as error:
        return Finding(package, not_checked=f"the package index does not answer: {error}")
    if told is None or "vulnerabilities" not in told:
        return Finding(package, not_checked="the package index has no record of it")
    latest = told.get("info", {}).get("version")
    if latest != package.version:
        return Finding(package, not_checked=f"the package index only tells about {latest}")
    known = [each for each in told["vulnerabilities"] if not each.get("withdrawn")]
    return Finding(package, tuple(map(_describe, known)))


def _fetch(url: str, context: ssl.SSLContext) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S, context=context) as reply:
            body: dict[str, Any] = json.load(reply)
            return body
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise


def _describe(vulnerability: dict[str, Any]) -> str:
    names = ", ".join([vulnerability["id"], *vulnerability.get("aliases", ())])
    fixed = ", ".join(vulnerability.get("fixed_in", ())) or "no version yet"
    return f"{names}: {vulnerability.get('summary') or 'no summary'} (fixed in {fixed})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", metavar="FILE", nargs="+", type=Path, help="a lock file")
    packages = pinned(parser.parse_args().files)
    context = ssl.create_default_context(cafile=pip_setting("cert") or None)
    index = re.sub(r"/simple/?$", "/pypi", pip_setting("index-url")) or PyPI.pypi_url
    with ThreadPoolExecutor(8) as pool:
        findings = list(pool.map(lambda each: check(each, index, context), packages))
    for finding in findings:
        label = f"{finding.package.name} {finding.package.version}"
        for text in finding.vulnerabilities:
            print(f"VULNERABLE   {label}: {text}")
        if finding.not_checked:
            print(f"NOT CHECKED  {label}: {finding.not_checked}")
    vulnerable = sum(bool(each.vulnerabilities) for each in findings)
    unknown = sum(bool(each.not_checked) for each in findings)
    checked = len(findings) - unknown
    print(
        f"Python packages: {checked} of {len(findings)} checked for known vulnerabilities, "
        f"{vulnerable} vulnerable, {unknown} could not be checked"
    )
    return 1 if vulnerable else 2 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
