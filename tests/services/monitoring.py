"""InfluxDB, Prometheus, Pushgateway, Graphite's Carbon, Netdata and StatsD."""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from tests.lab.ports import free_port
from tests.services.base import PASSWORD, Service, accepts, tool
from tests.services.downloads import cached


def get(url: str, **headers: str) -> bytes:
    with urlopen(Request(url, headers=headers), timeout=10) as reply:
        body: bytes = reply.read()
    return body


def eventually(read: Callable[[], Any], is_enough: Callable[[Any], bool], within_s: float) -> Any:
    """Read until it is enough or the time is over; return what was read last."""
    until_s = time.monotonic() + within_s
    while not is_enough(found := read()) and time.monotonic() < until_s:
        time.sleep(0.1)  # between two looks at another program
    return found


class InfluxDB(Service):
    """InfluxDB 1 with a password; its UDP input takes what Telegraf would get."""

    name = "influxdb"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.udp_port = free_port()
        self.rpc_port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self) -> None:
        place = self.directory
        (place / "influx.conf").write_text(
            f"""
reporting-disabled = true
bind-address = "127.0.0.1:{self.rpc_port}"
[meta]
dir = "{place}/meta"
[data]
dir = "{place}/data"
wal-dir = "{place}/wal"
[http]
bind-address = "127.0.0.1:{self.port}"
auth-enabled = true
[monitor]
store-enabled = false
[[udp]]
enabled = true
bind-address = "127.0.0.1:{self.udp_port}"
database = "telegraf"
batch-size = 1
"""
        )

    def command(self) -> list[str]:
        return [tool("influxd"), "run", "-config", str(self.directory / "influx.conf")]

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/ping", timeout=5) as reply:
                return "X-Influxdb-Version" in reply.headers
        except OSError:
            return False

    def set_up(self) -> None:
        query = f"CREATE USER load WITH PASSWORD '{PASSWORD}' WITH ALL PRIVILEGES"
        urlopen(Request(f"{self.url}/query?{urlencode({'q': query})}", method="POST")).close()
        self.query("CREATE DATABASE load")

    def query(self, text: str, database: str = "load") -> list[dict[str, Any]]:
        fields = {"q": text, "db": database, "u": "load", "p": PASSWORD, "epoch": "ns"}
        request = Request(f"{self.url}/query?{urlencode(fields)}", method="POST")
        with urlopen(request, timeout=10) as reply:
            results = json.loads(reply.read())["results"]
        found: list[dict[str, Any]] = results[0].get("series", [])
        return found


class Prometheus(Service):
    """Prometheus with its receiver of remote writes and native histograms."""

    name = "prometheus"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self) -> None:
        (self.directory / "prometheus.yml").write_text("global: {scrape_interval: 1s}\n")

    def command(self) -> list[str]:
        return [
            tool("prometheus"),
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--web.enable-remote-write-receiver",
            "--enable-feature=native-histograms",
            "--web.enable-lifecycle",
        ]

    def is_ready(self) -> bool:
        try:
            return bool(get(f"{self.url}/-/ready"))
        except OSError:
            return False

    def query(self, text: str, *, at_s: float | None = None) -> list[dict[str, Any]]:
        fields = {"query": text} | ({} if at_s is None else {"time": str(at_s)})
        reply = json.loads(get(f"{self.url}/api/v1/query?{urlencode(fields)}"))
        found: list[dict[str, Any]] = reply["data"]["result"]
        return found


class Pushgateway(Service):
    name = "pushgateway"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        return [tool("prometheus-pushgateway"), f"--web.listen-address=127.0.0.1:{self.port}"]


_WHISPER = """
import json, os, sys, time, whisper
root, found = sys.argv[1], {}
for place, _, names in os.walk(root):
    for name in names:
        if name.endswith(".wsp"):
            path = os.path.join(place, name)
            values = [v for v in whisper.fetch(path, time.time() - 3000)[1] if v is not None]
            if values:
                found[os.path.relpath(path, root)[:-4].replace(os.sep, ".")] = values[-1]
print(json.dumps(found))
"""


class Graphite(Service):
    """Carbon, which stores what it receives in Whisper files."""

    name = "graphite"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.pickle_port, self.query_port = free_port(), free_port()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def install(self) -> None:
        place = self.directory
        (place / "carbon.conf").write_text(
            f"""
[cache]
STORAGE_DIR = {place}
LOCAL_DATA_DIR = {place}/whisper/
CONF_DIR = {place}
LOG_DIR = {place}/
PID_DIR = {place}/
USER =
ENABLE_LOGROTATION = False
MAX_CREATES_PER_MINUTE = inf
MAX_UPDATES_PER_SECOND = inf
LINE_RECEIVER_INTERFACE = 127.0.0.1
LINE_RECEIVER_PORT = {self.port}
PICKLE_RECEIVER_INTERFACE = 127.0.0.1
PICKLE_RECEIVER_PORT = {self.pickle_port}
CACHE_QUERY_INTERFACE = 127.0.0.1
CACHE_QUERY_PORT = {self.query_port}
"""
        )
        (place / "storage-schemas.conf").write_text("[default]\npattern = .*\nretentions = 1s:1h\n")

    def command(self) -> list[str]:
        config = str(self.directory / "carbon.conf")
        return [tool("carbon-cache"), f"--config={config}", "--debug", "start"]

    def stored(self) -> dict[str, float]:
        """Return the last value of every path."""
        root = str(self.directory / "whisper")
        found: dict[str, float] = json.loads(
            subprocess.check_output(["/usr/bin/python3", "-c", _WHISPER, root])
        )
        return found


class Netdata(Service):
    """Netdata with nothing but its StatsD server."""

    name = "netdata"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.statsd_port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def install(self) -> None:
        place = self.directory
        for name in ("cache", "lib", "log", "conf"):
            (place / name).mkdir()
        off = "proc diskspace cgroups tc idlejitter apps python.d charts.d go.d node.d ebpf perf"
        off += " slabinfo ioping nfacct fping freeipmi xenstat cups timex netdata\\ monitoring"
        plugins = "\n".join(f"    {each} = no" for each in off.split())
        (place / "netdata.conf").write_text(
            f"""
[global]
    hostname = test
    run as user = {os.environ.get("USER", "root")}
[directories]
    cache = {place}/cache
    lib = {place}/lib
    log = {place}/log
    config = {place}/conf
[db]
    mode = ram
    update every = 1
[ml]
    enabled = no
[health]
    enabled = no
[registry]
    enabled = no
[web]
    bind to = 127.0.0.1:{self.port}
[plugins]
    enable running new plugins = no
{plugins}
    statsd = yes
[statsd]
    enabled = yes
    bind to = udp:127.0.0.1:{self.statsd_port} tcp:127.0.0.1:{self.statsd_port}
    max private charts hard limit = 5000
    decimal detail = 1000
"""
        )

    def command(self) -> list[str]:
        config = str(self.directory / "netdata.conf")
        return [tool("netdata"), "-D", "-c", config, "-P", str(self.directory / "netdata.pid")]

    def is_ready(self) -> bool:
        return accepts(self.port) and accepts(self.statsd_port)

    def gauges(self) -> dict[str, float]:
        """Return the last value of every gauge that came by StatsD."""
        charts = json.loads(get(f"{self.url}/api/v1/allmetrics?format=json"))
        return {
            name.removeprefix("statsd_").removesuffix("_gauge"): dimension["value"]
            for name, chart in charts.items()
            if name.startswith("statsd_") and name.endswith("_gauge")
            for dimension in chart["dimensions"].values()
        }


class StatsD(Service):
    """Etsy's StatsD, on Node.js."""

    name = "statsd"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.management_port = free_port()

    @property
    def url(self) -> str:
        return f"udp://127.0.0.1:{self.port}"

    def install(self) -> None:
        servers = [
            {"server": f"./servers/{kind}", "address": "127.0.0.1", "port": self.port}
            for kind in ("udp", "tcp")
        ]
        settings = {"servers": servers, "mgmt_address": "127.0.0.1", "backends": []}
        settings["mgmt_port"] = self.management_port
        (self.directory / "config.js").write_text(f"({json.dumps(settings)})")

    def command(self) -> list[str]:
        program = cached("statsd") / "node_modules/statsd/stats.js"
        return [tool("node"), str(program), str(self.directory / "config.js")]

    def is_ready(self) -> bool:
        return accepts(self.management_port)

    def gauges(self) -> dict[str, float]:
        """Ask the management port for every gauge."""
        with socket.create_connection(("127.0.0.1", self.management_port), timeout=5) as link:
            link.sendall(b"gauges\n")
            text = b""
            while not text.endswith(b"END\n\n"):
                text += link.recv(65536)
        body = text.decode().removesuffix("END\n\n")
        found: dict[str, float] = json.loads(
            subprocess.check_output(
                [tool("node"), "-e", f"console.log(JSON.stringify({body.strip()}))"]
            )
        )
        return found
