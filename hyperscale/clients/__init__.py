"""`self.client`: one module per protocol, all on one engine per executor."""

from hyperscale.clients.errors import RequestError
from hyperscale.clients.hub import Client, ClientHub

__all__ = ["Client", "ClientHub", "RequestError"]
