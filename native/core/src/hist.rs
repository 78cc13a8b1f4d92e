//! Latency histograms: nanoseconds, 100 ns to 1 h, three significant digits,
//! exchanged in the standard `HdrHistogram` V2 (deflate) format.

use std::cell::RefCell;

use flate2::{Decompress, FlushDecompress, Status};
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer};
use hdrhistogram::Histogram as Hdr;

const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

// How these bounds lay out the buckets: values below 2^UNIT share one, the first 2^(HALF + 1)
// buckets are 2^UNIT wide, each 2^HALF after them twice as wide as those before.
const UNIT: u32 = LOWEST_NS.ilog2();
const HALF: u32 = 10;

// The format, as in the specification of HdrHistogram.
const V2_DEFLATE: u32 = 0x1c84_9314;
const V2: u32 = 0x1c84_9313;
const HEAD_BYTES: usize = 40;
const COUNT_BYTES_MAX: usize = 9;
// More than all buckets of these bounds take.
const PLAIN_BYTES_MAX: usize = HEAD_BYTES + COUNT_BYTES_MAX * 27 * (1 << HALF);

thread_local! {
    // Making an inflater costs more than inflating one histogram.
    static INFLATER: RefCell<(Decompress, Vec<u8>)> =
        RefCell::new((Decompress::new(true), vec![0; PLAIN_BYTES_MAX]));
}

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

    /// The same as to decode and to merge, at a tenth of the cost: most buckets of an encoded
    /// histogram are empty, and none of those is touched.
    pub fn merge_encoded(&mut self, payload: &[u8]) -> Result<(), HistError> {
        let is_ours = INFLATER.with_borrow_mut(|(inflater, plain)| {
            let plain = inflate(payload, inflater, plain)?;
            counts(plain, |_, _| ())?; // all or nothing
            counts(plain, |value_ns, count| self.inner.saturating_record_n(value_ns, count))
        });
        // Of another make or broken: whoever knows the whole format decides.
        if is_ours.is_some() {
            Ok(())
        } else {
            self.merge(&Self::decode(payload)?)
        }
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

/// What is deflated in `payload`; None if it is not deflated V2.
fn inflate<'a>(payload: &[u8], inflater: &mut Decompress, plain: &'a mut [u8]) -> Option<&'a [u8]> {
    let deflated = payload.get(8..)?;
    if number(payload, 0)? != V2_DEFLATE
        || usize::try_from(number(payload, 4)?) != Ok(deflated.len())
    {
        return None;
    }
    inflater.reset(true);
    let status = inflater.decompress(deflated, plain, FlushDecompress::Finish);
    if !matches!(status, Ok(Status::StreamEnd)) {
        return None;
    }
    plain.get(..usize::try_from(inflater.total_out()).ok()?)
}

/// Hands over every value that was recorded, with how often. None if this is not V2 with our
/// own bounds, from the first byte to the last.
fn counts(plain: &[u8], mut take: impl FnMut(u64, u64)) -> Option<()> {
    let (head, mut rest) = plain.split_at_checked(HEAD_BYTES)?;
    let long =
        |at: usize| Some(u64::from(number(head, at)?) << 32 | u64::from(number(head, at + 4)?));
    let is_ours = number(head, 0)? == V2
        && usize::try_from(number(head, 4)?) == Ok(rest.len())
        && number(head, 8)? == 0
        && number(head, 12)? == u32::from(DIGITS)
        && long(16)? == LOWEST_NS
        && long(24)? == HIGHEST_NS;
    if !is_ours {
        return None;
    }
    let mut index: u64 = 0;
    while !rest.is_empty() {
        let (coded, left) = varint(rest)?;
        rest = left;
        let half = coded >> 1;
        if coded & 1 == 1 {
            index = index.checked_add(half.checked_add(1)?)?; // so many empty ones
        } else {
            let value_ns = value_at(index)?;
            if half > 0 {
                take(value_ns, half);
            }
            index += 1;
        }
    }
    Some(())
}

/// The lowest value of a bucket; None beyond the last one.
fn value_at(index: u64) -> Option<u64> {
    let (bucket, sub) = (index >> HALF, index & ((1 << HALF) - 1));
    let value = if bucket == 0 {
        sub << UNIT
    } else {
        let shift = u32::try_from(bucket - 1).ok()?.checked_add(UNIT)?;
        if shift > 40 {
            return None;
        }
        (sub + (1 << HALF)) << shift
    };
    (value <= HIGHEST_NS).then_some(value)
}

/// LEB128, but for a ninth byte, which is taken whole.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value: u64 = 0;
    for (place, &byte) in bytes.iter().enumerate().take(COUNT_BYTES_MAX) {
        let is_whole = place + 1 == COUNT_BYTES_MAX;
        value |= u64::from(if is_whole { byte } else { byte & 0x7f }) << (7 * place);
        if is_whole || byte & 0x80 == 0 {
            return Some((value, bytes.get(place + 1..)?));
        }
    }
    None
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*four))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::Histogram;

    #[test]
    fn encoded_ones_merge_as_decoded_ones_do() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 16
        };
        let (mut quick, mut slow) = (Histogram::new(), Histogram::new());
        for round in 0..200 {
            let mut one = Histogram::new();
            for _ in 0..round {
                let value_ns = random() >> (random() % 48);
                one.record(value_ns, 1 + random() % 1_000_000);
            }
            if round == 150 {
                one.record(u64::MAX, 1 << 40);
                one.record(0, 3);
            }
            let payload = one.encode().unwrap();
            quick.merge_encoded(&payload).unwrap();
            slow.merge(&Histogram::decode(&payload).unwrap()).unwrap();
            assert_eq!(quick.encode().unwrap(), slow.encode().unwrap());
            assert_eq!((quick.min(), quick.max()), (slow.min(), slow.max()));
            assert_eq!(quick.count(), slow.count());
            assert_eq!(quick.mean().to_bits(), slow.mean().to_bits());
        }
    }

    #[test]
    fn garbage_merges_nothing() {
        let mut histogram = Histogram::new();
        histogram.record(5_000, 3);
        let before = histogram.encode().unwrap();
        let mut payload = before.clone();
        for at in 0..payload.len() {
            payload[at] ^= 0x55;
            let is_merged = histogram.merge_encoded(&payload).is_ok();
            assert_eq!(is_merged, Histogram::decode(&payload).is_ok(), "byte {at}");
            if !is_merged {
                assert_eq!(histogram.encode().unwrap(), before);
            }
            payload[at] ^= 0x55;
            histogram = Histogram::decode(&before).unwrap();
        }
        assert!(histogram.merge_encoded(b"").is_err());
        assert!(histogram.merge_encoded(&payload[..payload.len() / 2]).is_err());
    }

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
