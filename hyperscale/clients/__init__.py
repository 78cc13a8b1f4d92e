"""`self.client`: one module per protocol, on one engine per executor."""

from hyperscale.clients.http import RequestError
from hyperscale.clients.hub import Client, ClientHub

__all__ = ["Client", "ClientHub", "RequestError"]
