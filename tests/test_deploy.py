"""The systemd units start the commands that there are, and systemd accepts them."""

import configparser
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from hyperscale.cli.command_line import COMMANDS
from hyperscale.cli.parser import Parser
from hyperscale.config import parse_duration_s
from hyperscale.config.schema import ROLES, NodeSection
from hyperscale.reporting.exit_codes import ExitCode

UNITS = Path(__file__).parent.parent / "deploy" / "systemd"


def unit_of(role: str) -> Path:
    return UNITS / f"hyperscale-{role}.service"


def settings_of(role: str) -> dict[str, configparser.SectionProxy]:
    parser = configparser.RawConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keys keep their case
    parser.read(unit_of(role))
    return {name: parser[name] for name in parser.sections()}


def test_there_is_a_unit_for_each_role() -> None:
    assert sorted(path.name for path in UNITS.iterdir()) == sorted(
        unit_of(role).name for role in ROLES
    )


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_starts_its_role_with_flags_that_the_command_has(role: str) -> None:
    service = settings_of(role)["Service"]
    program, command, *flags = service["ExecStart"].split()
    assert (Path(program).name, command) == ("hyperscale", role)
    assert command in COMMANDS
    parser = Parser()
    import_module(f"hyperscale.cli.{command}").add_arguments(parser)
    assert parser.parse_args(flags).config == Path(f"/etc/hyperscale/{role}.toml")


@pytest.mark.parametrize("role", ROLES)
def test_a_unit_gives_its_node_time_to_leave_and_does_not_restart_wrong_settings(role: str) -> None:
    unit = settings_of(role)
    service = unit["Service"]
    stop_s = parse_duration_s(f"{service['TimeoutStopSec']}s", where="TimeoutStopSec")
    assert stop_s > NodeSection().stop_s
    assert int(service["RestartPreventExitStatus"]) == ExitCode.BAD_INPUT
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert service["User"] != "root"
    assert service["StateDirectoryMode"] == "0700"
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("role", ROLES)
def test_systemd_accepts_a_unit(role: str, tmp_path: Path) -> None:
    copy = tmp_path / unit_of(role).name
    text = unit_of(role).read_text()
    copy.write_text(text.replace("/opt/hyperscale/bin/hyperscale", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # It also names problems of units that are installed on this machine.
    assert not [line for line in done.stderr.splitlines() if copy.name in line]
