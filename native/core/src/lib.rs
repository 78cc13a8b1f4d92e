//! The parts of Hyperscale that must be fast or must not be written twice:
//! the load engine and the histograms. Knows nothing of Python.

pub mod hist;
