"""`self.client.sse`: server-sent events, read by number or for a time."""

from time import perf_counter
from typing import Any, Unpack

from hyperscale.clients.http import RequestError
from hyperscale.clients.streams import StreamClient
from hyperscale.clients.templates import StreamOptions
from hyperscale.config import parse_duration_s
from hyperscale.errors import InputError
from hyperscale.testing.arguments import CLIENT_SCHEMES
from hyperscale.testing.streams import SSEResponse

_EVENTS_MAX = 1_000_000


class SSEClient(StreamClient[SSEResponse]):
    """The event streams of one virtual user."""

    __slots__ = ()
    response_type = SSEResponse
    schemes = tuple(CLIENT_SCHEMES["sse"])

    async def read(
        self,
        url: str,
        *,
        events: int | None = None,
        duration: str | float | None = None,
        last_id: str = "",
        **call: Unpack[StreamOptions],
    ) -> SSEResponse:
        """Open the stream and read `events` of them, or what comes in `duration`.

        The call ends when it has them, or when the server ends the stream. `last_id` is sent as
        `Last-Event-ID`: the server goes on after that event.
        """
        where = f"read {url}"
        if (events is None) == (duration is None):
            raise InputError(f"{where}: give either events or duration", hint="events=10")
        if events is not None and not 1 <= events <= _EVENTS_MAX:
            raise InputError(f"{where}: events={events} is not from 1 to {_EVENTS_MAX:,}")
        options: Any = dict(call)
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if last_id:
            headers["Last-Event-ID"] = last_id
        options["headers"] = tuple({**headers, **(call.get("headers") or {})}.items())
        if duration is not None:
            options["timeout"] = duration
        return await self._call(
            "GET",
            url,
            options,
            events=True,
            count=events or _EVENTS_MAX,
            ends_in_time=duration is not None,
        )

    async def follow(
        self, url: str, *, events: int, within: str | float, **call: Unpack[StreamOptions]
    ) -> list[SSEResponse]:
        """Read events over as many connections as it takes, as browsers do.

        After a stream that ended early, the next one goes on after the last event. Raises if
        `within` is over before there are as many. Returns the responses of all connections.
        """
        end_s = perf_counter() + parse_duration_s(within, where="within")
        responses: list[SSEResponse] = []
        seen, last_id = 0, ""
        while seen < events:
            left_s = end_s - perf_counter()
            if left_s <= 0:
                raise TimeoutError(f"follow {url}: {seen} of {events} events in {within}")
            call["timeout"] = left_s
            try:
                response = await self.read(url, events=events - seen, last_id=last_id, **call)
            except RequestError as error:
                response = SSEResponse(error.exchange)
                if error.error != "reset" or not response.events:
                    raise  # a stream that brings nothing would be opened again and again
            responses.append(response)
            if response.status >= 400:
                break
            seen += len(response.events)
            last_id = response.last_id or last_id
        return responses

    async def ping(self, url: str, **call: Unpack[StreamOptions]) -> SSEResponse:
        """Wait for one event."""
        return await self.read(url, events=1, **call)


CLIENT = SSEClient
