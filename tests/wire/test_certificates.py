"""`hyperscale certs` and `hyperscale secret`: what they write, and what they refuse."""

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509

from hyperscale.cli.main import main
from hyperscale.errors import InputError
from hyperscale.wire.certificate_identity import identity_from_uris
from hyperscale.wire.client_access import ClientRole
from hyperscale.wire.cluster_secret import Secrets, read_secret_file
from hyperscale.wire.roles import Role
from hyperscale.wire.security import Security, SecurityMode, TlsFiles

BASE = ["certs", "--cluster", "acme", "--environment", "prod"]


def certs(folder: Path, *more: str) -> int:
    return main([*BASE, "--out", str(folder), *more])


def names_of(path: Path) -> x509.SubjectAlternativeName:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files(folder: Path, name: str) -> TlsFiles:
    return TlsFiles(folder / f"{name}.pem", folder / f"{name}-key.pem", folder / "ca.pem")


class TestCerts:
    def test_an_authority_and_a_certificate_for_each_role(self, tmp_path: Path) -> None:
        folder = tmp_path / "certs"
        assert certs(folder) == 0
        for role in Role:
            names = names_of(folder / f"{role}.pem")
            vouched = identity_from_uris(names.get_values_for_type(x509.UniformResourceIdentifier))
            assert vouched.roles == {role}
            assert (vouched.cluster, vouched.environment) == ("acme", "prod")
            assert "localhost" in names.get_values_for_type(x509.DNSName)
            assert mode_of(folder / f"{role}-key.pem") == 0o600
            assert Security(tls=files(folder, role)).mode is SecurityMode.TLS
        assert mode_of(folder / "ca-key.pem") == 0o600
        assert mode_of(folder) == 0o700

    def test_one_more_is_signed_by_the_same_authority(self, tmp_path: Path) -> None:
        certs(tmp_path)
        before = (tmp_path / "ca.pem").read_bytes()
        more = ["--role", "worker", "--name", "worker-7", "--node-id", "w7", "--host", "10.0.0.7"]
        assert certs(tmp_path, *more, "--datacenter", "eu-1") == 0
        assert (tmp_path / "ca.pem").read_bytes() == before
        names = names_of(tmp_path / "worker-7.pem")
        vouched = identity_from_uris(names.get_values_for_type(x509.UniformResourceIdentifier))
        assert (vouched.node_id, vouched.datacenter) == ("w7", "eu-1")
        assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        assert context.get_ca_certs()

    @pytest.mark.parametrize(
        ("flags", "node", "client", "role"),
        [
            (["worker", "--name", "w7"], "w7", "", None),
            (["worker", "--name", "w7", "--node-id", "any"], "", "", None),
            (["viewer", "--name", "vera"], "", "vera", ClientRole.VIEWER),
            (["client", "--name", "alice"], "", "alice", ClientRole.SUBMITTER),
            (["operator", "--name", "olga"], "", "olga", ClientRole.OPERATOR),
            (["client"], "", "", None),
        ],
    )
    def test_a_name_binds_a_certificate_to_a_node_or_to_a_client(
        self, tmp_path: Path, flags: list[str], node: str, client: str, role: ClientRole | None
    ) -> None:
        assert certs(tmp_path, "--role", *flags) == 0
        name = flags[2] if len(flags) > 1 else flags[0]
        names = names_of(tmp_path / f"{name}.pem")
        vouched = identity_from_uris(names.get_values_for_type(x509.UniformResourceIdentifier))
        assert (vouched.node_id, vouched.client, vouched.client_role) == (node, client, role)

    def test_existing_files_are_not_overwritten(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        certs(tmp_path, "--role", "client")
        before = {path: path.read_bytes() for path in tmp_path.iterdir()}
        assert certs(tmp_path, "--role", "client") == 2
        assert "already exists" in capsys.readouterr().err
        assert certs(tmp_path) == 2  # one of the five is there, so none is made
        assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before

    def test_half_an_authority_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        certs(tmp_path, "--role", "client")
        (tmp_path / "ca-key.pem").unlink()
        assert certs(tmp_path, "--role", "worker") == 2
        assert "needs both" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "wrong",
        [
            ["--days", "0"],
            ["--days", "soon"],
            ["--days", "1000000"],
            ["--name", "alone"],
            ["--role", "viewer"],
            ["--role", "worker", "--role", "client", "--name", "both"],
            ["--role", "king"],
            ["--role", "worker", "--name", "../escape"],
            ["--cluster", "no spaces"],
        ],
    )
    def test_wrong_input_makes_nothing(self, tmp_path: Path, wrong: list[str]) -> None:
        folder = tmp_path / "certs"
        assert certs(folder, *wrong) == 2
        assert not folder.exists()

    def test_help_says_what_to_do(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["certs", "--help"]) == 0
        text = capsys.readouterr().out
        assert "--role worker --name worker-7" in text
        assert "never\noverwritten" in text


class TestFiles:
    def test_files_that_are_not_what_they_should_be_are_named(self, tmp_path: Path) -> None:
        certs(tmp_path, "--role", "worker")
        certs(tmp_path, "--role", "client")
        good = files(tmp_path, "worker")
        junk = tmp_path / "junk.pem"
        junk.write_text("not a certificate")
        for wrong in (
            TlsFiles(tmp_path / "missing.pem", good.key, good.authority),
            TlsFiles(junk, good.key, good.authority),
            TlsFiles(good.certificate, tmp_path / "client-key.pem", good.authority),
            TlsFiles(good.certificate, good.key, junk),
            TlsFiles(good.certificate, good.key, tmp_path / "missing.pem"),
        ):
            with pytest.raises(InputError, match=r"\.pem"):
                Security(tls=wrong)


class TestSecret:
    def test_the_secret_command_prints_a_strong_secret(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["secret"]) == 0
        text = capsys.readouterr().out.strip()
        assert len(text) >= 43
        Secrets(text)

    def test_the_secret_command_writes_a_private_file_once(self, tmp_path: Path) -> None:
        path = tmp_path / "cluster.secret"
        assert main(["secret", "--out", str(path)]) == 0
        assert mode_of(path) == 0o600
        secret = read_secret_file(path)
        assert main(["secret", "--out", str(path)]) == 2
        assert read_secret_file(path) == secret
        Secrets(secret)

    def test_the_secret_in_a_file_is_stripped_and_checked(self, tmp_path: Path) -> None:
        path = tmp_path / "s"
        with pytest.raises(InputError, match="cannot be read"):
            read_secret_file(path)
        path.touch(mode=0o600)
        path.write_bytes(b"\xff\xfe not text at all")
        with pytest.raises(InputError, match="not text"):
            read_secret_file(path)
        path.write_bytes(b"x" * 5000)
        with pytest.raises(InputError, match="more than"):
            read_secret_file(path)
        with pytest.raises(InputError, match="Is a directory"):
            read_secret_file(tmp_path)

    @pytest.mark.parametrize(
        ("content", "words"), [("\n", "is empty"), ("swordfish", "at least 16")]
    )
    def test_a_secret_file_that_holds_too_little_is_named_and_not_shown(
        self, tmp_path: Path, content: str, words: str
    ) -> None:
        path = tmp_path / "cluster.secret"
        path.touch(mode=0o600)
        path.write_text(content)
        with pytest.raises(InputError, match=words) as raised:
            read_secret_file(path)
        assert str(path) in str(raised.value)
        assert "swordfish" not in str(raised.value)

    @pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
    def test_a_secret_file_that_is_open_to_others_is_refused_unless_allowed(
        self, tmp_path: Path, mode: int
    ) -> None:
        path = tmp_path / "cluster.secret"
        path.write_text("correct horse battery staple")
        path.chmod(mode)
        with pytest.raises(InputError, match=rf"open to other users: mode {mode:o}") as refused:
            read_secret_file(path)
        assert f"chmod 600 {path}" in refused.value.hint
        assert read_secret_file(path, is_lenient=True) == "correct horse battery staple"

    def test_help_explains_rotation(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["secret", "--help"]) == 0
        assert "To rotate the secret without downtime" in capsys.readouterr().out
