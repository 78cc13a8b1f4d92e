"""Finds the client of a protocol and imports it, with its library, when it is first used."""

import difflib
import importlib
import logging
from typing import Any, cast

from hyperscale.clients.library import LibraryClient
from hyperscale.errors import InputError
from hyperscale.testing.protocols import NATIVE_PROTOCOLS, PROTOCOLS

ENGINE_CLIENTS = ("graphql", "sse", "tcp", "udp", "websocket")
"""Clients beside `http` that use the native engine, each a module of that name."""


def engine_client_class(name: str) -> Any:
    """Return the class of a client that uses the engine: it is made from the user's `http`."""
    return importlib.import_module(f"hyperscale.clients.{name}").CLIENT


def client_class(name: str) -> type[LibraryClient]:
    """Return the class of `self.client.<name>`.

    Raises AttributeError for a name that is no client, InputError if its library is missing.
    """
    row = PROTOCOLS.get(name)
    if row is None:
        known = [*NATIVE_PROTOCOLS, *ENGINE_CLIENTS, *PROTOCOLS]
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean self.client.{near[0]}?" if near else ""
        raise AttributeError(f"there is no client {name!r}{meant} Clients: {', '.join(known)}")
    try:
        module = importlib.import_module(f"hyperscale.clients.{name}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] == "hyperscale":
            raise
        raise InputError(
            f"self.client.{name} needs the package {row.library!r}, which is not installed here "
            f"({error})",
            hint=row.install,
        ) from error
    # Failures are counted and sampled; without a handler, Python would print each of them too.
    logging.getLogger(row.library).addHandler(logging.NullHandler())
    return cast(type[LibraryClient], module.CLIENT)
