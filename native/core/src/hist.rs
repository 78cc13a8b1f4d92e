//! Latency histograms: nanoseconds, 100 ns to 1 h, three significant digits,
//! exchanged in the standard `HdrHistogram` V2 (deflate) format.

use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use hdrhistogram::Histogram as Hdr;

const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

#[derive(Debug, thiserror::Error)]
pub enum HistError {
    #[error("not an HdrHistogram V2 payload: {0}")]
    Decode(String),
    #[error("histogram could not be encoded: {0}")]
    Encode(String),
    #[error("histograms have different bounds: {0}")]
    Merge(String),
}

#[derive(Clone, Debug)]
pub struct Histogram {
    inner: Hdr<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

impl Histogram {
    #[must_use]
    pub fn new() -> Self {
        match Hdr::new_with_bounds(LOWEST_NS, HIGHEST_NS, DIGITS) {
            Ok(inner) => Self { inner },
            // The bounds are constants that the crate accepts; a test pins it.
            Err(error) => unreachable!("histogram bounds: {error}"),
        }
    }

    /// Values outside the bounds are counted at the nearest bound.
    pub fn record(&mut self, value_ns: u64, count: u64) {
        self.inner.saturating_record_n(value_ns.max(1), count);
    }

    pub fn merge(&mut self, other: &Self) -> Result<(), HistError> {
        self.inner.add(&other.inner).map_err(|error| HistError::Merge(error.to_string()))
    }

    pub fn reset(&mut self) {
        self.inner.reset();
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.inner.len()
    }

    #[must_use]
    pub fn min(&self) -> u64 {
        self.inner.min()
    }

    #[must_use]
    pub fn max(&self) -> u64 {
        self.inner.max()
    }

    #[must_use]
    pub fn mean(&self) -> f64 {
        self.inner.mean()
    }

    #[must_use]
    pub fn stdev(&self) -> f64 {
        self.inner.stdev()
    }

    /// The value at quantile `q` in `[0, 1]`, never above the recorded maximum.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        self.inner.value_at_quantile(q.clamp(0.0, 1.0)).min(self.inner.max())
    }

    pub fn encode(&self) -> Result<Vec<u8>, HistError> {
        let mut out = Vec::new();
        V2DeflateSerializer::new()
            .serialize(&self.inner, &mut out)
            .map_err(|error| HistError::Encode(format!("{error:?}")))?;
        Ok(out)
    }

    /// Accepts V2, plain or deflated, and only our own bounds, so that what was
    /// decoded can always be merged and never asks for a huge allocation.
    pub fn decode(payload: &[u8]) -> Result<Self, HistError> {
        const PAYLOAD_BYTES_MAX: usize = 4 << 20;
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(HistError::Decode(format!("{} bytes is too long", payload.len())));
        }
        let inner: Hdr<u64> = Deserializer::new()
            .deserialize(&mut std::io::Cursor::new(payload))
            .map_err(|error| HistError::Decode(format!("{error:?}")))?;
        if inner.sigfig() != DIGITS || inner.high() != HIGHEST_NS || inner.low() != LOWEST_NS {
            return Err(HistError::Decode(format!(
                "bounds {}..{} with {} digits, expected {LOWEST_NS}..{HIGHEST_NS} with {DIGITS}",
                inner.low(),
                inner.high(),
                inner.sigfig()
            )));
        }
        Ok(Self { inner })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::Histogram;

    #[test]
    fn what_was_encoded_decodes_to_the_same_values() {
        let mut histogram = Histogram::new();
        for value_ns in [1, 100, 5_000, 1_000_000, 3_600_000_000_000, u64::MAX] {
            histogram.record(value_ns, 3);
        }
        let copy = Histogram::decode(&histogram.encode().unwrap()).unwrap();
        assert_eq!(copy.count(), 18);
        assert_eq!(copy.quantile(0.5), histogram.quantile(0.5));
        assert_eq!(copy.max(), histogram.max());
    }

    #[test]
    fn garbage_is_refused() {
        assert!(Histogram::decode(b"garbage").is_err());
        let mut payload = Histogram::new().encode().unwrap();
        payload.truncate(9);
        assert!(Histogram::decode(&payload).is_err());
    }
}
