//! The parts of Hyperscale that must be fast or must not be written twice:
//! the load engine, what it records, and the histograms. Knows nothing of Python.

pub mod clock;
pub mod engine;
pub mod guard;
pub mod hist;
pub mod recorder;
