//! Why calls of a step failed: distinct messages, how often each occurred, and one sample of each.
//!
//! Messages that differ only in numbers or ids count as one (`normalised`). A recorder keeps the
//! first `ROWS_MAX` of them. A merge keeps those that come first in the order of class and
//! normalised message: an order that no count changes, so that merging in any order and grouping
//! gives the same rows, counts and samples. What is not kept is counted together.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::masking::bounded;

/// Distinct messages of one step.
pub const ROWS_MAX: usize = 20;
const MESSAGE_BYTES_MAX: usize = 400;
/// Hexadecimal runs this long are ids.
const ID_CHARS_MIN: usize = 8;

/// One call that failed. The order of the fields is the order of samples: the earliest comes first.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// The second of the workflow in which it failed.
    pub second: u32,
    /// Method and URL; empty if the call was no request.
    pub request: Box<str>,
    /// 0 if no response arrived.
    pub status: u16,
    pub latency_ns: u64,
    /// In the order of `Phase::ALL`; 0 where the phase did not happen.
    pub phases_ns: [u64; 4],
    /// Lines of the response's head.
    pub headers: Box<str>,
    /// The start of the response's body.
    pub body: Box<str>,
    /// Where the test's own code raised.
    pub trace: Box<str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailureRow {
    pub class: Box<str>,
    pub message: Box<str>,
    pub count: u64,
    pub sample: Option<Arc<Sample>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    pub rows: Vec<FailureRow>,
    /// Failures with other messages than these.
    pub other: u64,
}

impl Failures {
    /// All of them as one. Counts wrap, as all counts do.
    #[must_use]
    pub fn merged<'a>(parts: impl Iterator<Item = &'a Self>) -> Self {
        let mut found: BTreeMap<(&str, String), FailureRow> = BTreeMap::new();
        let mut other: u64 = 0;
        for part in parts {
            other = other.wrapping_add(part.other);
            for row in &part.rows {
                let into = found
                    .entry((&row.class, normalised(&row.message)))
                    .or_insert_with(|| FailureRow { count: 0, ..row.clone() });
                into.count = into.count.wrapping_add(row.count);
                if row.message < into.message {
                    into.message.clone_from(&row.message);
                }
                if row.sample.is_some() && (into.sample.is_none() || row.sample < into.sample) {
                    into.sample.clone_from(&row.sample);
                }
            }
        }
        let mut rows: Vec<FailureRow> = found.into_values().collect();
        for row in rows.drain(ROWS_MAX.min(rows.len())..) {
            other = other.wrapping_add(row.count);
        }
        Self { rows, other }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.other == 0
    }

    /// About how many bytes it takes when it is encoded; rather too many than too few.
    #[must_use]
    pub fn size_hint(&self) -> usize {
        let sample = |s: &Arc<Sample>| {
            200 + s.request.len() + s.headers.len() + s.body.len() + s.trace.len()
        };
        let row = |r: &FailureRow| {
            60 + r.class.len() + r.message.len() + r.sample.as_ref().map_or(0, sample)
        };
        40 + self.rows.iter().map(row).sum::<usize>()
    }

    /// Takes out samples, the last first, and then rows, until it takes at most `bytes_max`.
    pub fn bound(&mut self, bytes_max: usize) {
        for place in (0..self.rows.len()).rev() {
            if self.size_hint() <= bytes_max {
                return;
            }
            if let Some(row) = self.rows.get_mut(place) {
                row.sample = None;
            }
        }
        while self.size_hint() > bytes_max {
            let Some(row) = self.rows.pop() else { return };
            self.other = self.other.wrapping_add(row.count);
        }
    }
}

#[derive(Debug)]
struct LogRow {
    /// The message as it last came: most failures repeat it.
    last: Box<str>,
    key: String,
    row: FailureRow,
}

/// The failures of one step as they happen. After the first of a message, one more is a count.
#[derive(Debug, Default)]
pub struct FailureLog {
    rows: Vec<LogRow>,
    other: u64,
}

impl FailureLog {
    /// Counts one failure; `sample` is called if the message is new.
    pub fn note(
        &mut self,
        class: &str,
        message: &str,
        sample: impl FnOnce(&str) -> (Box<str>, Option<Sample>),
    ) {
        let message = bounded(message, MESSAGE_BYTES_MAX);
        let of_class = |one: &&mut LogRow| *one.row.class == *class;
        if let Some(one) = self.rows.iter_mut().filter(of_class).find(|one| *one.last == *message) {
            one.row.count += 1;
            return;
        }
        let key = normalised(message);
        if let Some(one) = self.rows.iter_mut().filter(of_class).find(|one| one.key == key) {
            one.last = message.into();
            one.row.count += 1;
        } else if self.is_full() {
            self.other += 1;
        } else {
            let (shown, sample) = sample(message);
            let sample = sample.map(Arc::new);
            let row = FailureRow { class: class.into(), message: shown, count: 1, sample };
            self.rows.push(LogRow { last: message.into(), key, row });
        }
    }

    /// True if no further message gets a row.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.rows.len() >= ROWS_MAX
    }

    #[must_use]
    pub fn failures(&self) -> Failures {
        Failures { rows: self.rows.iter().map(|one| one.row.clone()).collect(), other: self.other }
    }
}

/// The message with numbers and ids taken out. Digits stay after a colon and beside a dot: ports,
/// lines, addresses and fractions.
#[must_use]
pub fn normalised(message: &str) -> String {
    let mut found = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(first) = rest.chars().next() {
        let is_hex = |c: char| c.is_ascii_hexdigit() || c == '-';
        let hex = rest.find(|c| !is_hex(c)).unwrap_or(rest.len());
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let run = rest.get(..hex).unwrap_or_default();
        let taken = if hex >= ID_CHARS_MIN && run.bytes().filter(u8::is_ascii_digit).count() >= 2 {
            hex
        } else if digits > 0 {
            let is_place = found.ends_with([':', '.'])
                || rest.get(digits..).is_some_and(|after| after.starts_with('.'));
            if is_place {
                found.push_str(rest.get(..digits).unwrap_or_default());
                rest = rest.get(digits..).unwrap_or_default();
                continue;
            }
            digits
        } else {
            found.push(first);
            rest = rest.get(first.len_utf8()..).unwrap_or_default();
            continue;
        };
        found.push('#');
        rest = rest.get(taken..).unwrap_or_default();
    }
    found
}

#[cfg(test)]
#[path = "failures_tests.rs"]
mod tests;
