//! The native program without Python: `closed_loop URL USERS ITERATIONS`.
//!
//! `benchmarks/where_time_goes.py` runs it under callgrind with two numbers of iterations: the
//! difference is what one request costs.

use std::env::args;
use std::error::Error;
use std::sync::Arc;

use hyperscale_core::engine::http::template::{Limits, Template};
use hyperscale_core::engine::program::{Program, ProgramStep};
use hyperscale_core::engine::protocol::Protocol;
use hyperscale_core::engine::transport::tls::TlsProfile;
use hyperscale_core::engine::Options;
use hyperscale_core::recorder::Recorder;

const SLICE_NS: u64 = 20_000_000;
const LIMITS: Limits = Limits {
    connect_ns: 10_000_000_000,
    read_ns: 30_000_000_000,
    total_ns: 30_000_000_000,
    redirects_max: 10,
    body_bytes_max: 64 << 20,
};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = args().skip(1).collect();
    let [url, users, iterations] = words.as_slice() else {
        return Err("usage: closed_loop URL USERS ITERATIONS".into());
    };
    let tls = TlsProfile { verify: false, ..TlsProfile::default() };
    let template = Template::new("GET", url, Vec::new(), None, LIMITS, &tls, Protocol::Http1)?;
    let template = Arc::new(template);
    let step = ProgramStep {
        templates: vec![template],
        feed: None,
        step: 0,
        after: Vec::new(),
        accepts: Vec::new(),
    };
    let mut recorder = Recorder::new(1);
    let iterations = iterations.parse()?;
    let mut program =
        Program::new(Options::default(), vec![vec![step]], users.parse()?, Some(iterations))?;
    while program.run(SLICE_NS, &mut recorder)? {}
    let counts = &recorder.steps().first().ok_or("no step")?.counts;
    println!("{} ok of {}", counts.ok, counts.total);
    if counts.ok == iterations {
        Ok(())
    } else {
        Err("not every request got its response".into())
    }
}
