"""Statistics: reports, their merge, live views, thresholds and saturation."""
