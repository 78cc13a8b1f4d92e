//! Latency histograms: nanoseconds, 100 ns to 1 h, three significant digits, encoded in the
//! standard `HdrHistogram` V2 format. Reports carry the plain form, because inflating costs ten
//! times as much as merging; results files carry the deflated form.

use std::io::Read;

use flate2::read::ZlibDecoder;
use hdrhistogram::serialization::{Deserializer, Serializer, V2DeflateSerializer, V2Serializer};
use hdrhistogram::Histogram as Hdr;

const LOWEST_NS: u64 = 100;
const HIGHEST_NS: u64 = 3_600_000_000_000;
const DIGITS: u8 = 3;

// How these bounds lay out the buckets: values below 2^UNIT share one, the first 2^(HALF + 1)
// buckets are 2^UNIT wide, each 2^HALF after them twice as wide as those before.
const UNIT: u32 = LOWEST_NS.ilog2();
const HALF: u32 = 10;
const BUCKETS: usize = ((HIGHEST_NS.ilog2() - UNIT - HALF + 1) as usize) << HALF;

// The format, as in the specification of HdrHistogram.
const V2: u32 = 0x1c84_9313;
const V2_DEFLATE: u32 = 0x1c84_9314;
const HEAD_BYTES: usize = 40;
const COUNT_BYTES_MAX: usize = 9;

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

    /// Merges encoded histograms. The result equals decoding and merging each of them, at a
    /// fraction of the cost: most buckets of an encoded histogram are empty and are skipped.
    pub fn merged<'a>(payloads: impl IntoIterator<Item = &'a [u8]>) -> Result<Self, HistError> {
        let mut merged = Self::new();
        let mut sums = vec![0_u64; BUCKETS];
        let mut end = 0;
        let mut taken = Vec::new();
        for payload in payloads {
            taken.clear();
            if counts(payload, |index, count| taken.push((index, count))).is_none() {
                // Deflated, written by another library, or broken: the full decoder decides.
                merged.merge(&Self::decode(payload)?)?;
                continue;
            }
            for &(index, count) in &taken {
                if let Some(sum) = sums.get_mut(index) {
                    *sum = sum.saturating_add(count);
                }
            }
            end = end.max(taken.last().map_or(0, |(index, _)| index + 1));
        }
        for (index, &count) in sums.iter().take(end).enumerate() {
            if count > 0 {
                merged.inner.saturating_record_n(value_at(index), count);
            }
        }
        Ok(merged)
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
        self.serialize(&mut V2Serializer::new())
    }

    pub fn encode_deflated(&self) -> Result<Vec<u8>, HistError> {
        self.serialize(&mut V2DeflateSerializer::new())
    }

    fn serialize(&self, format: &mut impl Serializer) -> Result<Vec<u8>, HistError> {
        let mut out = Vec::new();
        format
            .serialize(&self.inner, &mut out)
            .map_err(|error| HistError::Encode(format!("{error:?}")))?;
        Ok(out)
    }

    /// Decodes V2, plain or deflated. Only histograms with the bounds above are accepted, so that
    /// decoded histograms can always be merged and no payload causes a huge allocation.
    pub fn decode(payload: &[u8]) -> Result<Self, HistError> {
        const PAYLOAD_BYTES_MAX: usize = 4 << 20;
        if payload.len() > PAYLOAD_BYTES_MAX {
            return Err(HistError::Decode(format!("{} bytes is too long", payload.len())));
        }
        // The crate allocates as much as the head claims, so the head is checked first.
        let mut head = [0; HEAD_BYTES];
        let is_whole = if number(payload, 0) == Some(V2_DEFLATE) {
            ZlibDecoder::new(payload.get(8..).unwrap_or_default()).read_exact(&mut head).is_ok()
        } else {
            payload.take(HEAD_BYTES as u64).read_exact(&mut head).is_ok()
        };
        let counts_bytes = number(&head, 4).map_or(usize::MAX, |bytes| bytes as usize);
        if !is_whole || !is_ours(&head) || counts_bytes > BUCKETS * COUNT_BYTES_MAX {
            return Err(HistError::Decode(format!(
                "not of {LOWEST_NS} to {HIGHEST_NS} ns with {DIGITS} digits"
            )));
        }
        let inner: Hdr<u64> = Deserializer::new()
            .deserialize(&mut std::io::Cursor::new(payload))
            .map_err(|error| HistError::Decode(format!("{error:?}")))?;
        Ok(Self { inner })
    }
}

/// True if this is the head of a V2 payload with the bounds above.
fn is_ours(head: &[u8]) -> bool {
    let long =
        |at: usize| Some(u64::from(number(head, at)?) << 32 | u64::from(number(head, at + 4)?));
    number(head, 0) == Some(V2)
        && number(head, 8) == Some(0)
        && number(head, 12) == Some(u32::from(DIGITS))
        && long(16) == Some(LOWEST_NS)
        && long(24) == Some(HIGHEST_NS)
        && long(32) == Some(1.0_f64.to_bits())
}

/// Calls `take` with the index and count of every bucket that is not empty. None if the payload is
/// not a complete V2 payload with the bounds above.
fn counts(payload: &[u8], mut take: impl FnMut(usize, u64)) -> Option<()> {
    let (head, mut rest) = payload.split_at_checked(HEAD_BYTES)?;
    if !is_ours(head) || usize::try_from(number(head, 4)?) != Ok(rest.len()) {
        return None;
    }
    let mut index: usize = 0;
    while !rest.is_empty() {
        let (coded, left) = varint(rest)?;
        rest = left;
        let half = coded >> 1;
        if coded & 1 == 1 {
            index = index.checked_add(usize::try_from(half).ok()?.checked_add(1)?)?;
        } else {
            if index >= BUCKETS {
                return None;
            }
            if half > 0 {
                take(index, half);
            }
            index += 1;
        }
    }
    Some(())
}

/// The lowest value of a bucket.
fn value_at(index: usize) -> u64 {
    let sub = (index & ((1 << HALF) - 1)) as u64;
    match index >> HALF {
        0 => sub << UNIT,
        bucket => (sub + (1 << HALF)) << (UNIT as usize + bucket - 1),
    }
}

/// Reads a LEB128 number whose ninth byte, if there is one, has eight bits of the number.
#[inline]
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    // Most numbers are a single byte: runs of empty buckets and small counts.
    let (&first, rest) = bytes.split_first()?;
    if first & 0x80 == 0 {
        return Some((u64::from(first), rest));
    }
    let mut value = u64::from(first & 0x7f);
    for (place, &byte) in bytes.iter().enumerate().take(COUNT_BYTES_MAX).skip(1) {
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
    fn encoded_histograms_merge_like_decoded_ones() {
        let mut state = 1_u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 16
        };
        let mut slow = Histogram::new();
        let (mut plain, mut mixed) = (Vec::new(), Vec::new());
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
            plain.push(one.encode().unwrap());
            mixed.push(if round % 2 == 0 { one.encode() } else { one.encode_deflated() }.unwrap());
            slow.merge(&Histogram::decode(plain.last().unwrap()).unwrap()).unwrap();
            if round % 20 > 0 && round != 150 {
                continue;
            }
            for payloads in [&plain, &mixed] {
                let quick = Histogram::merged(payloads.iter().map(Vec::as_slice)).unwrap();
                assert_eq!(quick.encode().unwrap(), slow.encode().unwrap());
                assert_eq!((quick.min(), quick.max()), (slow.min(), slow.max()));
                assert_eq!(quick.count(), slow.count());
                assert_eq!(quick.mean().to_bits(), slow.mean().to_bits());
            }
        }
    }

    #[test]
    fn a_payload_merges_exactly_if_it_decodes() {
        let mut histogram = Histogram::new();
        histogram.record(5_000, 3);
        let mut payload = histogram.encode().unwrap();
        for at in 0..payload.len() {
            payload[at] ^= 0x55;
            let merged = Histogram::merged([payload.as_slice()]);
            match Histogram::decode(&payload) {
                Ok(decoded) => {
                    assert_eq!(merged.unwrap().encode().unwrap(), decoded.encode().unwrap());
                }
                Err(_) => assert!(merged.is_err(), "byte {at}"),
            }
            payload[at] ^= 0x55;
        }
        payload[4..8].fill(0xff); // a claimed size larger than memory
        assert!(Histogram::merged([payload.as_slice()]).is_err());
        assert!(Histogram::merged([b"".as_slice()]).is_err());
        assert!(Histogram::merged([&payload[..payload.len() / 2]]).is_err());
    }

    #[test]
    fn decoding_restores_the_encoded_values() {
        let mut histogram = Histogram::new();
        for value_ns in [1, 100, 5_000, 1_000_000, 3_600_000_000_000, u64::MAX] {
            histogram.record(value_ns, 3);
        }
        for payload in [histogram.encode().unwrap(), histogram.encode_deflated().unwrap()] {
            let copy = Histogram::decode(&payload).unwrap();
            assert_eq!(copy.count(), 18);
            assert_eq!(copy.quantile(0.5), histogram.quantile(0.5));
            assert_eq!(copy.max(), histogram.max());
        }
    }

    #[test]
    fn garbage_is_refused() {
        assert!(Histogram::decode(b"garbage").is_err());
        let mut payload = Histogram::new().encode().unwrap();
        payload.truncate(9);
        assert!(Histogram::decode(&payload).is_err());
    }
}
