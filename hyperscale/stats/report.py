"""Reports: everything one slot, or one part, of a workflow has counted so far.

Every report is cumulative and carries a sequence number, so a lost, repeated or reordered report
changes nothing. Executors make them natively, they travel encoded, and each receiver decodes and
merges them natively (`stats.workflow`, `jobs.agent.statistics`).
"""

from hyperscale._native import (
    CheckReport,
    MetricReport,
    Report,
    ReportMerge,
    SeriesValue,
    StepCounts,
    shed_reports,
)

__all__ = [
    "CheckReport",
    "MetricReport",
    "Report",
    "ReportMerge",
    "SeriesValue",
    "StepCounts",
    "shed_reports",
]
