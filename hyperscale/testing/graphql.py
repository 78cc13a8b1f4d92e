"""GraphQL: documents that are checked before a run starts, and the reply to one.

Documents are parsed, and validated against a schema, by `graphql-core`, an extra. Without it only
what is plainly no document is refused; the server refuses the rest.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeAlias

from hyperscale.errors import InputError
from hyperscale.testing.arguments import OptimizedArg
from hyperscale.testing.http import HTTPResponse, decode_json
from hyperscale.testing.streams import Event, WebsocketResponse

_INSTALL = "pip install 'hyperscale[graphql]'"


class GraphQLSchema:
    """The schema of a server: `schema = GraphQLSchema("schema.graphql")` in a workflow.

    Every `Query` and `Mutation` of the workflow is validated against it before the run starts. The
    file is read where the test is started, and nowhere else.
    """

    def __init__(self, file: str | Path) -> None:
        self.file = str(file)

    def problems(self, text: str, documents: Mapping[str, str]) -> list[str]:
        """Return what is wrong with documents, each with its name, by the text of the schema.

        Raises InputError if the schema itself is wrong or `graphql-core` is missing.
        """
        try:
            import graphql  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise InputError(
                f"{self.file}: a schema needs the package 'graphql-core'", hint=_INSTALL
            ) from error
        try:
            schema = graphql.build_schema(text)
        except (graphql.GraphQLError, TypeError) as error:
            raise InputError(f"{self.file}: not a GraphQL schema: {_on_one_line(error)}") from error
        found = []
        for name, document in documents.items():
            errors = graphql.validate(schema, graphql.parse(document))
            found += [f"{name}: {_on_one_line(error)}" for error in errors]
        return found


class DocumentValue(str, OptimizedArg):
    """A GraphQL document, parsed where `graphql-core` is installed."""

    kind: ClassVar[str]

    @classmethod
    def wrap(cls, value: object) -> Self:
        if not isinstance(value, str) or not value.strip():
            raise InputError(
                f"{value!r} is not a GraphQL {cls.kind}", hint=f'write "{cls.kind} {{ field }}"'
            )
        kinds = _operations(value)
        if kinds is not None and cls.kind not in kinds:
            other = " and ".join(sorted(kinds)) or "no operation"
            raise InputError(f"the document has {other}, not a {cls.kind}")
        return cls(value)


class QueryValue(DocumentValue):
    """A GraphQL document with a query."""

    kind = "query"


class MutationValue(DocumentValue):
    """A GraphQL document with a mutation."""

    kind = "mutation"


def _operations(document: str) -> set[str] | None:
    """Return the kinds of operation in a document; None without `graphql-core`."""
    try:
        import graphql  # noqa: PLC0415 - an extra
    except ImportError:
        if document.count("{") != document.count("}") or "{" not in document:
            raise InputError(f"{document!r} is not a GraphQL document") from None
        return None
    try:
        parsed = graphql.parse(document)
    except graphql.GraphQLError as error:
        raise InputError(f"not a GraphQL document: {_on_one_line(error)}") from error
    operations = (
        each for each in parsed.definitions if isinstance(each, graphql.OperationDefinitionNode)
    )
    return {each.operation.value for each in operations}


def _on_one_line(error: Exception) -> str:
    """Return the message of an error of `graphql-core` and the line it is about."""
    locations: Sequence[Any] = getattr(error, "locations", None) or ()
    message = str(getattr(error, "message", error))
    return f"line {locations[0].line}: {message}" if locations else message


class SubscriptionResponse(WebsocketResponse):
    """The events of a subscription, over a WebSocket or as server-sent events."""

    __slots__ = ()
    protocol = "graphql"

    @property
    def payloads(self) -> Sequence[Mapping[str, Any]]:
        """The payload of each event: `data` and perhaps `errors`."""
        return [each["payload"] for each in self._events() if each.get("type") == "next"]

    def _events(self) -> Sequence[Mapping[str, Any]]:
        """Return the events in the words of `graphql-transport-ws`."""
        return [
            decode_json(each.encode()) if isinstance(each, str) else _sent_event(each)
            for each in self.messages
        ]

    def failure(self) -> tuple[str, str] | None:
        """Return the error class and the message of a subscription that failed."""
        for each in self._events():
            payload = each.get("payload")
            errors = payload if each.get("type") == "error" else (payload or {}).get("errors")
            if errors:
                return "graphql", str(errors[0].get("message", "an error without a message"))
        return None


def _sent_event(block: bytes) -> Mapping[str, Any]:
    """Return a server-sent event in the words of `graphql-transport-ws`."""
    event = Event.parse(block)
    is_next = event.event == "next"
    return {"type": event.event, "payload": decode_json(event.data.encode()) if is_next else None}


class GraphQLResponse(HTTPResponse):
    """The reply to a document. One with `errors` counts as failed, whatever its status."""

    __slots__ = ("_reply",)
    protocol = "graphql"

    @property
    def reply(self) -> Mapping[str, Any]:
        """The whole reply; empty if the body is not one."""
        if not hasattr(self, "_reply"):
            try:
                value = self.json()
            except ValueError:
                value = None
            self._reply = value if isinstance(value, dict) else {}
        return self._reply

    @property
    def data(self) -> Any:
        """What was asked for; None if there is none."""
        return self.reply.get("data")

    @property
    def errors(self) -> Sequence[Mapping[str, Any]]:
        """The errors of the reply."""
        errors = self.reply.get("errors")
        return errors if isinstance(errors, list) else ()

    @property
    def ok(self) -> bool:
        """Whether the status is below 400 and the reply has no errors."""
        return self.status < 400 and self.failure() is None

    def failure(self) -> tuple[str, str] | None:
        """Return the error class and the message of a reply that is a failure by its body."""
        if errors := self.errors:
            first = errors[0] if isinstance(errors[0], dict) else {}
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            return "graphql", f"{first.get('message', 'an error without a message')}{more}"
        if "data" not in self.reply:
            return "protocol", "the body is no GraphQL reply: it has neither data nor errors"
        return None


if TYPE_CHECKING:
    Query: TypeAlias = str
    Mutation: TypeAlias = str
else:
    Query, Mutation = QueryValue, MutationValue
