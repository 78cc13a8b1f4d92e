"""A sample of a failed call as text, for reports that people read."""

from hyperscale.reporting.results import FailureSample


def describe_sample(sample: FailureSample) -> str:
    """Return request, status and times, then headers, body and frames, as far as there are any."""
    times = {"total": sample.latency_ms, **sample.phases_ms}
    facts = [f"{name} {ms:.3g} ms" for name, ms in times.items() if ms is not None]
    if sample.status:
        facts.insert(0, f"status {sample.status}")
    blocks = [
        sample.request,
        ", ".join(facts) if sample.request else "",
        "\n".join(sample.headers),
        sample.body,
        sample.trace,
    ]
    return "\n".join(block.rstrip("\n") for block in blocks if block)
