//! The parts of Hyperscale that must be fast or must not be written twice:
//! the load engine, what it records, the histograms, reports and their merge, and below the ledger the
//! consensus core and its durable store. Knows nothing of Python.

pub mod clock;
pub mod confinement;
pub mod engine;
pub mod guard;
pub mod hist;
pub mod http2;
pub mod http3;
pub mod iterations;
pub mod loop_watch;
pub mod masking;
pub mod noise;
pub mod raft;
pub mod recorder;
pub mod report;
pub mod shape;
pub mod store;
