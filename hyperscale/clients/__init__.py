"""`self.client`: one module per protocol, on one engine per executor."""

from hyperscale.clients.http import RequestError
from hyperscale.clients.hub import Client, ClientHub
from hyperscale.clients.library import ClientError

__all__ = ["Client", "ClientError", "ClientHub", "RequestError"]
