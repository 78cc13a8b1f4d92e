//! Reports as they travel: MessagePack maps keyed by name. Keys of a newer version are carried
//! on; values at their default are left out.

use std::collections::BTreeMap;

use super::failures_codec::{failures, write_failures};
use super::msgpack::{Reader, Writer};
use super::series::{CELLS_MAX, WIDEST_S};
use super::{
    CheckReport, Counts, DecodeError, Encoded, HoldReport, MetricReport, Phases, Point, Report,
    StepReport, Unknown, Users,
};

/// What the widest tier of a series spans: longer than any run may take.
const ELAPSED_S_MAX: u32 = WIDEST_S * CELLS_MAX as u32;
/// A histogram of ours has fewer bytes, however full it is.
const HISTOGRAM_BYTES_MAX: usize = 1 << 20;

pub(super) type Read<T> = Result<T, DecodeError>;

impl Report {
    /// Reads a report that anyone may have sent.
    ///
    /// # Errors
    /// Whatever is not a whole, well-formed report is refused.
    pub fn decode(data: &[u8]) -> Read<Self> {
        let mut reader = Reader::new(data);
        let report = report(&mut reader)?;
        if reader.is_empty() {
            Ok(report)
        } else {
            Err(DecodeError::Trailing)
        }
    }

    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.out.reserve(self.size_hint());
        write_report(&mut writer, self);
        writer.out
    }

    /// About how many bytes the encoded report takes; rather too many than too few.
    fn size_hint(&self) -> usize {
        let steps = self.steps.iter().map(|step| {
            let phases = step.phases.iter().flatten().map(|(_, histogram)| histogram.len() + 20);
            let series =
                step.series.iter().map(|point| 60 + point.latency.as_ref().map_or(0, |h| h.len()));
            200 + step.latency.as_ref().map_or(0, |h| h.len())
                + phases.sum::<usize>()
                + step.failures.as_ref().map_or(0, |failures| failures.size_hint())
                + series.sum::<usize>()
        });
        300 + 10 * self.users.len() + steps.sum::<usize>()
    }
}

fn report(reader: &mut Reader<'_>) -> Read<Report> {
    let mut found = Report { series_s: 1, ..Report::default() };
    let (mut workflow, mut slot, mut sequence, mut elapsed_s) = (None, None, None, None);
    for _ in 0..reader.map()? {
        match reader.text()? {
            "workflow" => workflow = Some(reader.text()?.into()),
            "slot" => slot = Some(narrow(reader.uint()?, "slot")?),
            "sequence" => sequence = Some(reader.uint()?),
            "elapsed_s" => elapsed_s = Some(reader.float()?),
            "vus" => found.vus = reader.uint()?,
            "users" => found.users = users(reader)?,
            "iterations" => found.iterations = reader.uint()?,
            "raised" => found.raised = reader.uint()?,
            "steps" => found.steps = list(reader, step)?,
            "checks" => found.checks = list(reader, check)?,
            "metrics" => found.metrics = list(reader, metric)?,
            "holds" => found.holds = list(reader, hold)?,
            "loop_s" => found.loop_s = reader.float()?,
            "cpu_s" => found.cpu_s = reader.float()?,
            "loop_lag_s" => found.loop_lag_s = reader.float()?,
            "rss_bytes" => found.rss_bytes = reader.uint()?,
            "cpu_wait_s" => found.cpu_wait_s = reader.float()?,
            "series_s" => found.series_s = narrow(reader.uint()?, "series_s")?,
            key => unknown(reader, key, &mut found.unknown)?,
        }
    }
    found.workflow = workflow.ok_or(DecodeError::Missing("workflow"))?;
    found.slot = slot.ok_or(DecodeError::Missing("slot"))?;
    found.sequence = sequence.ok_or(DecodeError::Missing("sequence"))?;
    found.elapsed_s = elapsed_s.ok_or(DecodeError::Missing("elapsed_s"))?;
    if !(0.0..=f64::from(ELAPSED_S_MAX)).contains(&found.elapsed_s) {
        return Err(DecodeError::Range("elapsed_s"));
    }
    Ok(found)
}

/// Second, count, second, count …
fn users(reader: &mut Reader<'_>) -> Read<Users> {
    let mut found = Users::new();
    for _ in 0..reader.array()? / 2 {
        found.push((narrow(reader.uint()?, "a second of users")?, reader.uint()?));
    }
    if !found.is_sorted_by(|one, other| one.0 < other.0) {
        return Err(DecodeError::Range("the order of users"));
    }
    Ok(found)
}

fn step(reader: &mut Reader<'_>) -> Read<StepReport> {
    let mut found = StepReport::default();
    let mut name = None;
    for _ in 0..reader.map()? {
        match reader.text()? {
            "name" => name = Some(reader.text()?.into()),
            "counts" => found.counts = counts(reader)?,
            "latency" => found.latency = histogram(reader)?,
            "phases" => found.phases = phases(reader)?,
            "series" => found.series = list(reader, point)?,
            "failures" => found.failures = Some(failures(reader)?.into()),
            key => unknown(reader, key, &mut found.unknown)?,
        }
    }
    found.name = name.ok_or(DecodeError::Missing("the name of a step"))?;
    if !found.series.is_sorted_by(|one, other| one.second < other.second) {
        return Err(DecodeError::Range("the order of a step's seconds"));
    }
    Ok(found)
}

fn counts(reader: &mut Reader<'_>) -> Read<Counts> {
    let mut found = Counts::default();
    for _ in 0..reader.map()? {
        match reader.text()? {
            "total" => found.total = reader.uint()?,
            "ok" => found.ok = reader.uint()?,
            "failed" => found.failed = reader.uint()?,
            "none" => found.none = reader.uint()?,
            "cut" => found.cut = reader.uint()?,
            "skipped" => found.skipped = reader.uint()?,
            "sent" => found.sent = reader.uint()?,
            "bytes_sent" => found.bytes_sent = reader.uint()?,
            "bytes_received" => found.bytes_received = reader.uint()?,
            "held" => found.held = reader.uint()?,
            "status_codes" => {
                found.status_codes = pairs(reader, |reader| {
                    u16::try_from(reader.uint()?).map_err(|_| DecodeError::Range("a status code"))
                })?;
            }
            "errors" => found.errors = pairs(reader, |reader| Ok(reader.text()?.to_owned()))?,
            _ => drop(reader.raw()?),
        }
    }
    Ok(found)
}

fn pairs<K: Ord>(
    reader: &mut Reader<'_>,
    key: impl Fn(&mut Reader<'_>) -> Read<K>,
) -> Read<BTreeMap<K, u64>> {
    let mut found = BTreeMap::new();
    for _ in 0..reader.map()? {
        let (key, count) = (key(reader)?, reader.uint()?);
        if count > 0 {
            found.insert(key, count);
        }
    }
    Ok(found)
}

fn point(reader: &mut Reader<'_>) -> Read<Point> {
    let mut found = Point::default();
    let (mut has_second, mut has_total) = (false, false);
    for _ in 0..reader.map()? {
        match reader.text()? {
            "second" => {
                found.second = narrow(reader.uint()?, "second")?;
                has_second = true;
            }
            "total" => {
                found.total = reader.uint()?;
                has_total = true;
            }
            "failed" => found.failed = reader.uint()?,
            "sent" => found.sent = reader.uint()?,
            "latency" => found.latency = histogram(reader)?,
            _ => drop(reader.raw()?),
        }
    }
    if has_second && has_total {
        Ok(found)
    } else {
        Err(DecodeError::Missing("the second or the total of a point"))
    }
}

fn check(reader: &mut Reader<'_>) -> Read<CheckReport> {
    let mut found = CheckReport::default();
    let mut name = None;
    for _ in 0..reader.map()? {
        match reader.text()? {
            "name" => name = Some(reader.text()?.into()),
            "passed" => found.passed = reader.uint()?,
            "failed" => found.failed = reader.uint()?,
            "first_failure" if !reader.nil() => found.first_failure = Some(reader.text()?.into()),
            "first_failure" => found.first_failure = None,
            _ => drop(reader.raw()?),
        }
    }
    found.name = name.ok_or(DecodeError::Missing("the name of a check"))?;
    Ok(found)
}

fn metric(reader: &mut Reader<'_>) -> Read<MetricReport> {
    let mut found = MetricReport::default();
    let mut name = None;
    for _ in 0..reader.map()? {
        match reader.text()? {
            "name" => name = Some(reader.text()?.into()),
            "kind" => found.kind = reader.text()?.into(),
            "count" => found.count = reader.uint()?,
            "sum" => found.sum = reader.float()?,
            "min" => found.min = reader.float()?,
            "max" => found.max = reader.float()?,
            "last" => found.last = reader.float()?,
            "distribution" => found.distribution = histogram(reader)?,
            _ => drop(reader.raw()?),
        }
    }
    found.name = name.ok_or(DecodeError::Missing("the name of a metric"))?;
    Ok(found)
}

fn hold(reader: &mut Reader<'_>) -> Read<HoldReport> {
    let mut found = HoldReport::default();
    let mut name = None;
    for _ in 0..reader.map()? {
        match reader.text()? {
            "name" => name = Some(reader.text()?.into()),
            "count" => found.count = reader.uint()?,
            "seconds" => found.seconds = reader.float()?,
            "max_s" => found.max_s = reader.float()?,
            "cpu_s" => found.cpu_s = reader.float()?,
            "location" => found.location = reader.text()?.into(),
            _ => drop(reader.raw()?),
        }
    }
    found.name = name.ok_or(DecodeError::Missing("the name of a hold"))?;
    Ok(found)
}

fn phases(reader: &mut Reader<'_>) -> Read<Option<Phases>> {
    if reader.nil() {
        return Ok(None);
    }
    let count = reader.map()?;
    let mut found = Vec::with_capacity(reader.room(count, 8));
    for _ in 0..count {
        let name = reader.text()?.into();
        if let Some(histogram) = histogram(reader)? {
            found.push((name, histogram));
        }
    }
    Ok(Some(found))
}

/// None stands for nil and for no bytes.
fn histogram(reader: &mut Reader<'_>) -> Read<Option<Encoded>> {
    if reader.nil() {
        return Ok(None);
    }
    match reader.bytes()? {
        [] => Ok(None),
        bytes if bytes.len() > HISTOGRAM_BYTES_MAX => {
            Err(DecodeError::Range("the size of a histogram"))
        }
        bytes => Ok(Some(bytes.into())),
    }
}

pub(super) fn list<T>(
    reader: &mut Reader<'_>,
    each: fn(&mut Reader<'_>) -> Read<T>,
) -> Read<Vec<T>> {
    let count = reader.array()?;
    let mut found = Vec::with_capacity(reader.room(count, 16));
    for _ in 0..count {
        found.push(each(reader)?);
    }
    Ok(found)
}

pub(super) fn narrow(number: u64, what: &'static str) -> Read<u32> {
    u32::try_from(number).map_err(|_| DecodeError::Range(what))
}

fn unknown(reader: &mut Reader<'_>, key: &str, into: &mut Unknown) -> Read<()> {
    into.pairs.push((key.into(), reader.raw()?.into()));
    Ok(())
}

/// Writes a map whose size is known only at its end.
pub(super) struct MapWriter<'a> {
    writer: &'a mut Writer,
    at: usize,
    pairs: u8,
}

impl<'a> MapWriter<'a> {
    pub fn new(writer: &'a mut Writer) -> Self {
        let at = writer.out.len();
        writer.map(0);
        Self { writer, at, pairs: 0 }
    }

    pub fn key(&mut self, key: &str) -> &mut Writer {
        self.pairs += 1;
        self.writer.text(key);
        self.writer
    }

    pub fn uint(&mut self, key: &str, number: u64) {
        if number > 0 {
            self.key(key).uint(number);
        }
    }

    fn float(&mut self, key: &str, number: f64) {
        if number != 0.0 {
            self.key(key).float(number);
        }
    }

    fn histogram(&mut self, key: &str, histogram: Option<&Encoded>) {
        if let Some(histogram) = histogram {
            self.key(key).bytes(histogram);
        }
    }

    fn unknown(&mut self, unknown: &Unknown) {
        for (key, value) in unknown.pairs.iter().take(UNKNOWN_MAX) {
            self.key(key).out.extend_from_slice(value);
        }
    }

    /// Maps of up to 15 pairs have their count in the first byte, longer ones after it.
    pub fn end(self) {
        let out = &mut self.writer.out;
        if self.pairs < 16 {
            if let Some(lead) = out.get_mut(self.at) {
                *lead |= self.pairs;
            }
        } else {
            drop(out.splice(self.at..=self.at, [0xde, 0, self.pairs]));
        }
    }
}

/// Unknown keys that are carried on; a report has no more keys than `MapWriter` can count.
const UNKNOWN_MAX: usize = 200;

fn write_report(writer: &mut Writer, report: &Report) {
    let mut map = MapWriter::new(writer);
    map.key("workflow").text(&report.workflow);
    map.key("slot").uint(u64::from(report.slot));
    map.key("sequence").uint(report.sequence);
    map.key("elapsed_s").float(report.elapsed_s);
    map.key("vus").uint(report.vus);
    if !report.users.is_empty() {
        let writer = map.key("users");
        writer.array(2 * report.users.len());
        for &(second, count) in &report.users {
            writer.uint(u64::from(second));
            writer.uint(count);
        }
    }
    map.key("iterations").uint(report.iterations);
    map.uint("raised", report.raised);
    write_list(map.key("steps"), &report.steps, write_step);
    if !report.checks.is_empty() {
        write_list(map.key("checks"), &report.checks, write_check);
    }
    if !report.metrics.is_empty() {
        write_list(map.key("metrics"), &report.metrics, write_metric);
    }
    if !report.holds.is_empty() {
        write_list(map.key("holds"), &report.holds, write_hold);
    }
    map.float("loop_s", report.loop_s);
    map.float("cpu_s", report.cpu_s);
    map.float("loop_lag_s", report.loop_lag_s);
    map.uint("rss_bytes", report.rss_bytes);
    map.float("cpu_wait_s", report.cpu_wait_s);
    if report.series_s != 1 {
        map.key("series_s").uint(u64::from(report.series_s));
    }
    map.unknown(&report.unknown);
    map.end();
}

pub(super) fn write_list<T>(writer: &mut Writer, items: &[T], each: fn(&mut Writer, &T)) {
    writer.array(items.len());
    for item in items {
        each(writer, item);
    }
}

fn write_step(writer: &mut Writer, step: &StepReport) {
    let mut map = MapWriter::new(writer);
    map.key("name").text(&step.name);
    write_counts(map.key("counts"), &step.counts);
    map.histogram("latency", step.latency.as_ref());
    if let Some(phases) = &step.phases {
        let writer = map.key("phases");
        writer.map(phases.len());
        for (name, histogram) in phases {
            writer.text(name);
            writer.bytes(histogram);
        }
    }
    if !step.series.is_empty() {
        write_list(map.key("series"), &step.series, write_point);
    }
    if let Some(failures) = &step.failures {
        write_failures(map.key("failures"), failures);
    }
    map.unknown(&step.unknown);
    map.end();
}

fn write_counts(writer: &mut Writer, counts: &Counts) {
    let mut map = MapWriter::new(writer);
    map.uint("total", counts.total);
    map.uint("ok", counts.ok);
    map.uint("failed", counts.failed);
    map.uint("none", counts.none);
    map.uint("cut", counts.cut);
    map.uint("skipped", counts.skipped);
    map.uint("sent", counts.sent);
    map.uint("bytes_sent", counts.bytes_sent);
    map.uint("bytes_received", counts.bytes_received);
    map.uint("held", counts.held);
    if !counts.status_codes.is_empty() {
        let writer = map.key("status_codes");
        writer.map(counts.status_codes.len());
        for (&status, &count) in &counts.status_codes {
            writer.uint(u64::from(status));
            writer.uint(count);
        }
    }
    if !counts.errors.is_empty() {
        let writer = map.key("errors");
        writer.map(counts.errors.len());
        for (class, &count) in &counts.errors {
            writer.text(class);
            writer.uint(count);
        }
    }
    map.end();
}

fn write_point(writer: &mut Writer, point: &Point) {
    let mut map = MapWriter::new(writer);
    map.key("second").uint(u64::from(point.second));
    map.key("total").uint(point.total);
    map.uint("failed", point.failed);
    map.uint("sent", point.sent);
    map.histogram("latency", point.latency.as_ref());
    map.end();
}

fn write_check(writer: &mut Writer, check: &CheckReport) {
    let mut map = MapWriter::new(writer);
    map.key("name").text(&check.name);
    map.uint("passed", check.passed);
    map.uint("failed", check.failed);
    if let Some(text) = &check.first_failure {
        map.key("first_failure").text(text);
    }
    map.end();
}

fn write_hold(writer: &mut Writer, hold: &HoldReport) {
    let mut map = MapWriter::new(writer);
    map.key("name").text(&hold.name);
    map.uint("count", hold.count);
    map.float("seconds", hold.seconds);
    map.float("max_s", hold.max_s);
    map.float("cpu_s", hold.cpu_s);
    if !hold.location.is_empty() {
        map.key("location").text(&hold.location);
    }
    map.end();
}

fn write_metric(writer: &mut Writer, metric: &MetricReport) {
    let mut map = MapWriter::new(writer);
    map.key("name").text(&metric.name);
    map.key("kind").text(&metric.kind);
    map.uint("count", metric.count);
    map.float("sum", metric.sum);
    map.float("min", metric.min);
    map.float("max", metric.max);
    map.float("last", metric.last);
    map.histogram("distribution", metric.distribution.as_ref());
    map.end();
}
