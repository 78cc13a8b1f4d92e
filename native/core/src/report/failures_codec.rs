//! Failures as they travel in a report, within their bounds whatever the sender.

use super::codec::{list, narrow, write_list, MapWriter, Read};
use super::failures::ROWS_MAX;
use super::msgpack::{Reader, Writer};
use super::{DecodeError, FailureRow, Failures, Sample};

/// No text of a failure of ours is longer.
const TEXT_BYTES_MAX: usize = 16 << 10;

pub fn failures(reader: &mut Reader<'_>) -> Read<Failures> {
    let mut found = Failures::default();
    for _ in 0..reader.map()? {
        match reader.text()? {
            "rows" => found.rows = list(reader, row)?,
            "other" => found.other = reader.uint()?,
            _ => drop(reader.raw()?),
        }
    }
    if found.rows.len() > ROWS_MAX {
        return Err(DecodeError::Range("the number of failures of a step"));
    }
    Ok(found)
}

fn row(reader: &mut Reader<'_>) -> Read<FailureRow> {
    let mut found = FailureRow::default();
    for _ in 0..reader.map()? {
        match reader.text()? {
            "class" => found.class = text(reader)?,
            "message" => found.message = text(reader)?,
            "count" => found.count = reader.uint()?,
            "sample" => found.sample = Some(sample(reader)?.into()),
            _ => drop(reader.raw()?),
        }
    }
    Ok(found)
}

fn sample(reader: &mut Reader<'_>) -> Read<Sample> {
    let mut found = Sample::default();
    for _ in 0..reader.map()? {
        match reader.text()? {
            "second" => found.second = narrow(reader.uint()?, "the second of a failure")?,
            "request" => found.request = text(reader)?,
            "status" => {
                let status = u16::try_from(reader.uint()?);
                found.status = status.map_err(|_| DecodeError::Range("a status code"))?;
            }
            "latency_ns" => found.latency_ns = reader.uint()?,
            "phases_ns" => {
                let times = list(reader, |reader| reader.uint())?;
                for (phase, ns) in found.phases_ns.iter_mut().zip(times) {
                    *phase = ns;
                }
            }
            "headers" => found.headers = text(reader)?,
            "body" => found.body = text(reader)?,
            "trace" => found.trace = text(reader)?,
            _ => drop(reader.raw()?),
        }
    }
    Ok(found)
}

fn text(reader: &mut Reader<'_>) -> Read<Box<str>> {
    match reader.text()? {
        text if text.len() > TEXT_BYTES_MAX => Err(DecodeError::Range("a text of a failure")),
        text => Ok(text.into()),
    }
}

pub fn write_failures(writer: &mut Writer, failures: &Failures) {
    let mut map = MapWriter::new(writer);
    write_list(map.key("rows"), &failures.rows, write_row);
    map.uint("other", failures.other);
    map.end();
}

fn write_row(writer: &mut Writer, row: &FailureRow) {
    let mut map = MapWriter::new(writer);
    map.key("class").text(&row.class);
    map.key("message").text(&row.message);
    map.uint("count", row.count);
    if let Some(sample) = &row.sample {
        write_sample(map.key("sample"), sample);
    }
    map.end();
}

fn write_sample(writer: &mut Writer, sample: &Sample) {
    let mut map = MapWriter::new(writer);
    map.uint("second", u64::from(sample.second));
    map.uint("status", u64::from(sample.status));
    map.uint("latency_ns", sample.latency_ns);
    write_list(map.key("phases_ns"), &sample.phases_ns, |writer, &ns| writer.uint(ns));
    let texts = [
        ("request", &sample.request),
        ("headers", &sample.headers),
        ("body", &sample.body),
        ("trace", &sample.trace),
    ];
    for (key, text) in texts {
        if !text.is_empty() {
            map.key(key).text(text);
        }
    }
    map.end();
}
