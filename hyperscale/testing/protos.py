"""`Protos`: descriptions of gRPC services, so that no code has to be generated from them."""

from collections.abc import Sequence
from pathlib import Path

from hyperscale.errors import InputError


class Protos:
    """Descriptions of gRPC services: `protos = Protos("shop.proto")` in a workflow.

    Messages are dicts then, and replies instances of classes made from the description. Files are
    compiled where the test is started, and nowhere else. With `reflect="http://host:port"` the
    server describes its services itself.
    """

    def __init__(
        self,
        *files: str | Path,
        include: str | Path | Sequence[str | Path] = (),
        reflect: str | None = None,
    ) -> None:
        """`include` are directories to search for imports, beside those of the files."""
        if bool(files) == (reflect is not None):
            raise InputError(
                "Protos takes either .proto files or reflect=URL",
                hint='write Protos("shop.proto") or Protos(reflect="http://localhost:50051")',
            )
        self.files = tuple(map(str, files))
        given = (include,) if isinstance(include, str | Path) else include
        self.include = tuple(map(str, given))
        self.reflect = reflect
