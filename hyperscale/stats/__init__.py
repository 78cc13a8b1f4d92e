"""Counters, histograms, time series: how they are reported, merged and judged."""
