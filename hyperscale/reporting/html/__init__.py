"""A result as one HTML file that opens offline: style, plots and data are all inside it."""

from hyperscale.reporting.html.page import encode_html

__all__ = ["encode_html"]
