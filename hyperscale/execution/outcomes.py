"""Records the outcome of each call of a step: what it returned or raised."""

import inspect
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any

from hyperscale._native import Exchange, Recorder, mask_header
from hyperscale.clients import ClientError, RequestError
from hyperscale.errors import RunError
from hyperscale.execution.hook_calls import DUE, RAISED, HookCall
from hyperscale.execution.user_errors import SeenError, UserErrorLog, failure
from hyperscale.testing import CallResult, CustomResult, GraphQLResponse, SubscriptionResponse
from hyperscale.testing.parameters import masked
from hyperscale.testing.responses import LibraryResponse
from hyperscale.testing.results import outcome_of

_Results = list[Any] | None  # of an iteration; setup and teardown hooks have none
_RecordResult = Callable[[HookCall, Any, int, _Results], None]


class StepOutcomes:
    """Records the outcomes of steps, setup and teardown hooks of a slot."""

    def __init__(self, recorder: Recorder, faults: UserErrorLog, *, is_open: bool = False) -> None:
        self.recorder = recorder
        self.is_open = is_open  # latencies of first steps count from when the iteration was due
        self.faults = faults
        self.first_fault: RunError | None = None
        self.raised = 0  # iterations in which the test's own code raised
        self._record_by_type: dict[type, _RecordResult] = {}

    def settle(self, call: HookCall, result: Any, took_ns: int, results: _Results = None) -> None:
        """Record a hook that returned; `results` are those of its iteration."""
        kind = type(result)
        record = self._record_by_type.get(kind)
        if record is None:
            record = self._record_by_type[kind] = self._recording(kind)
        try:
            record(call, result, took_ns, results)
        except Exception as error:  # noqa: BLE001 - `accept` and `ok` may be the user's own code
            self.fail(call, error, results)

    def fail(self, call: HookCall, error: BaseException, results: _Results = None) -> None:
        """Record a hook that raised."""
        if isinstance(error, RequestError):
            self._count_exchange(call, error.exchange, False, results)
        elif isinstance(error, ClientError):
            latency_ns, service_ns = self._since_due(call, error.latency_ns, results)
            self.recorder.record(
                call.index,
                False,
                latency_ns=latency_ns,
                error=error.error,
                message=masked(error.detail),
                service_ns=service_ns,
                request=error.request,
                blocked_ns=error.blocked_ns,
                connect_ns=error.connect_ns,
            )
        else:
            seen = self.note_raised(call.name, error, results)
            self.recorder.record(
                call.index, False, error="exception", message=seen.message, trace=seen.trace
            )
        if self.first_fault is None:
            self.first_fault = failure(RunError, call.name, error)

    def note_raised(self, where: str, error: BaseException, results: _Results = None) -> SeenError:
        """Note an error of the test's own code; an iteration counts as raised once."""
        seen = self.faults.note(where, error)
        if results is not None and not results[RAISED]:
            results[RAISED] = True
            self.raised += 1
        return seen

    def _recording(self, kind: type) -> _RecordResult:
        if issubclass(kind, (GraphQLResponse, SubscriptionResponse)):
            return self._record_graphql
        if issubclass(kind, CallResult) and hasattr(kind, "exchange"):
            return self._record_exchange
        if issubclass(kind, LibraryResponse):
            return self._record_reply
        if issubclass(kind, CustomResult):
            return self._record_custom
        return self._record_return

    def _due_ns(self, call: HookCall, results: _Results) -> int | None:
        """Return when the call was due, if its latency counts from then."""
        is_first = self.is_open and results is not None and not call.needs
        return results[DUE] if is_first and results is not None else None

    def _count_exchange(
        self, call: HookCall, exchange: Exchange, accepted: bool, results: _Results
    ) -> None:
        due_ns = self._due_ns(call, results)
        if due_ns is None:
            self.recorder.record_exchange(call.index, exchange, accepted)
        else:
            self.recorder.record_exchange_since(call.index, exchange, accepted, due_ns)

    def _record_exchange(self, call: HookCall, result: Any, _: int, results: _Results) -> None:
        accept, exchange = call.accept, result.exchange
        # Of a gRPC call, what is accepted are codes.
        status = exchange.status if exchange.grpc_status is None else exchange.grpc_status
        accepted = accept is not None and bool(accept(status))
        self._count_exchange(call, exchange, accepted, results)

    def _record_graphql(
        self,
        call: HookCall,
        result: GraphQLResponse | SubscriptionResponse,
        took_ns: int,
        results: _Results,
    ) -> None:
        """Record a reply that may be a failure although its status is none."""
        failure = None if result.status >= 400 else result.failure()
        if failure is None:
            return self._record_exchange(call, result, took_ns, results)
        error, message = failure
        exchange = result.exchange
        latency_ns, service_ns = self._since_due(call, exchange.latency_ns, results)
        self.recorder.record(
            call.index,
            False,
            latency_ns=latency_ns,
            status=exchange.status or None,
            error=error,
            message=masked(message),
            service_ns=service_ns,
            request=f"{exchange.method} {mask_header('', exchange.url)}",
            blocked_ns=exchange.blocked_ns,
            connect_ns=exchange.connect_ns,
        )
        return None

    def _since_due(
        self, call: HookCall, took_ns: int | None, results: _Results
    ) -> tuple[int | None, int | None]:
        """Return the latency of a call that has just ended, and the part that the server took."""
        due_ns = None if took_ns is None else self._due_ns(call, results)
        if due_ns is None or took_ns is None:
            return took_ns, None
        return max(took_ns, perf_counter_ns() - due_ns), took_ns

    def _record_reply(
        self, call: HookCall, result: LibraryResponse, _took_ns: int, results: _Results
    ) -> None:
        blocked_ns, connect_ns = result.blocked_ns, result.connect_ns
        if not self.is_open and blocked_ns is None and connect_ns is None:
            self.recorder.record(call.index, True, result.latency_ns)
            return
        latency_ns, service_ns = self._since_due(call, result.latency_ns, results)
        self.recorder.record(
            call.index,
            True,
            latency_ns,
            service_ns=service_ns,
            blocked_ns=blocked_ns,
            connect_ns=connect_ns,
        )

    def _record_custom(
        self, call: HookCall, result: CustomResult, took_ns: int, results: _Results
    ) -> None:
        began_ns = perf_counter_ns() - took_ns
        is_ok, error, took_ns = outcome_of(result, took_ns)
        error = None if error is None else masked(error)
        latency_ns, service_ns = took_ns, None
        if (due_ns := self._due_ns(call, results)) is not None:
            latency_ns, service_ns = took_ns + max(0, began_ns - due_ns), took_ns
        self.recorder.record(
            call.index, is_ok, latency_ns=latency_ns, error=error, service_ns=service_ns
        )

    def _record_return(self, call: HookCall, result: Any, _took_ns: int, results: _Results) -> None:
        if call.owes is not None:
            self.fail(call, TypeError(_wrong_type(result, call.owes)), results)
        elif call.is_measured:  # a test step that had nothing to do: no result, good or bad
            self.recorder.add_none(call.index)
        else:
            self.recorder.record(call.index, True)


def _wrong_type(result: Any, owed: str) -> str:
    """Return why a test step that returned another type failed: nothing was measured."""
    if inspect.iscoroutine(result):
        result.close()  # reported here: Python need not warn again
    if inspect.isawaitable(result):
        return f"it returned something to wait for, not its {owed}: is an `await` missing?"
    if result is None:
        return (
            f"it returned None, not its {owed}: is a `return` missing? "
            f"(a step that may return nothing is annotated -> {owed} | None)"
        )
    return f"it returned {type(result).__name__}, not its {owed}"
