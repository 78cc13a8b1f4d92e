"""Servers of files: pyftpdlib and OpenSSH."""

import os
import pwd
import sys
from pathlib import Path

from tests.services.base import PASSWORD, QUOTED, Service, tool


class FTPServer(Service):
    """pyftpdlib with a login."""

    name = "ftp"

    @property
    def url(self) -> str:
        return f"ftp://load:{QUOTED}@127.0.0.1:{self.port}"

    @property
    def files(self) -> Path:
        return self.directory / "files"

    def install(self) -> None:
        (self.files / "counted").mkdir(parents=True)
        (self.files / "item").write_bytes(b"item 7")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.services.files", str(self.port), str(self.files)]

    def environment(self) -> dict[str, str]:
        return {"PYTHONPATH": str(Path(__file__).resolve().parent.parent.parent)}

    def uploads(self) -> int:
        """Return how many files `counted` has."""
        return sum(1 for _ in (self.files / "counted").iterdir())


class OpenSSH(Service):
    """sshd with one key that may log in as the account of the tests."""

    name = "sftp"

    @property
    def url(self) -> str:
        account = pwd.getpwuid(os.getuid()).pw_name
        place = f"{self.name}://{account}@127.0.0.1:{self.port}"
        return f"{place}/{self.files}?key={self.directory}/key"

    @property
    def files(self) -> Path:
        return self.directory / "files"

    def install(self) -> None:
        (self.files / "counted").mkdir(parents=True)
        (self.files / "item").write_bytes(b"item 7")
        for name in ("host", "key", "stranger"):
            place = str(self.directory / name)
            self.run(tool("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-f", place)
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # sshd wants it to drop its rights in
        # With another HOME, the shell that starts `scp` does not read the account's own .bashrc.
        (self.directory / "sshd_config").write_text(
            f"""
SetEnv HOME={self.directory}
ListenAddress 127.0.0.1:{self.port}
HostKey {self.directory}/host
PidFile {self.directory}/pid
AuthorizedKeysFile {self.directory}/key.pub
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 1000
MaxSessions 1000
Subsystem sftp internal-sftp
"""
        )

    def command(self) -> list[str]:
        return [tool("sshd"), "-D", "-e", "-f", str(self.directory / "sshd_config")]

    def uploads(self) -> int:
        """Return how many files `counted` has."""
        return sum(1 for _ in (self.files / "counted").iterdir())


class OpenSSHCopies(OpenSSH):
    """The same server, for `scp`."""

    name = "scp"


def main() -> None:
    from pyftpdlib.authorizers import DummyAuthorizer  # noqa: PLC0415 - only the server needs it
    from pyftpdlib.handlers import FTPHandler  # noqa: PLC0415
    from pyftpdlib.servers import FTPServer as Server  # noqa: PLC0415

    class Handler(FTPHandler):  # type: ignore[misc]  # ships no types
        authorizer = DummyAuthorizer()
        auth_failed_timeout = 0

    Handler.authorizer.add_user("load", PASSWORD, sys.argv[2], perm="elradfmwMT")
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
