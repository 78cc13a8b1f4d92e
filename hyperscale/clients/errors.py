"""What a client raises when a request brought no response."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hyperscale._native import Exchange


class RequestError(Exception):
    """No usable response. `error` is its class in the results.

    One of dns, connect, tls, timeout, reset, protocol, too_large.
    """

    def __init__(self, exchange: "Exchange") -> None:
        self.exchange = exchange
        self.error = exchange.error or "protocol"
        super().__init__(f"{exchange.method} {exchange.url}: {self.error}: {exchange.error_detail}")
