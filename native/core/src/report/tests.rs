//! Tests of reports and of their merge.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::sync::Arc;

use super::msgpack::{Reader, Writer};
use super::{
    shed, CheckReport, Counts, DecodeError, Encoded, Merge, MergeError, MetricReport, Point,
    Report, StepReport, Telling,
};
use crate::hist::Histogram;

fn spread(values_ms: &[u64]) -> Encoded {
    let mut histogram = Histogram::new();
    for value in values_ms {
        histogram.record(value * 1_000_000, 1);
    }
    histogram.encode().unwrap().into()
}

fn point(second: u32, total: u64) -> Point {
    let latency = Some(spread(&vec![5; total as usize]));
    Point { second, total, failed: 0, sent: total + 1, latency }
}

fn report(slot: u32, sequence: u64, total: u64, series: Vec<Point>) -> Report {
    let counts = Counts {
        total,
        ok: total,
        none: 2,
        held: 1,
        sent: total,
        status_codes: [(200, total)].into(),
        errors: [("reset".to_owned(), 1)].into(),
        ..Counts::default()
    };
    Report {
        workflow: "Load".into(),
        slot,
        sequence,
        elapsed_s: series.last().map_or(1.0, |point| f64::from(point.second) + 1.0),
        vus: 2,
        iterations: total,
        steps: vec![StepReport {
            name: "hit".into(),
            counts,
            latency: Some(spread(&vec![5; total as usize])),
            phases: Some(vec![("connect".into(), spread(&[1])), ("cut".into(), spread(&[7]))]),
            series,
            ..StepReport::default()
        }],
        checks: vec![CheckReport {
            name: "good".into(),
            passed: 1,
            failed: 1,
            first_failure: Some(format!("slot {slot}").into()),
        }],
        metrics: vec![MetricReport {
            name: "size".into(),
            kind: "timer".into(),
            count: 1,
            sum: 2.5,
            min: -1.0,
            max: 2.5,
            last: 2.5,
            distribution: Some(spread(&[2])),
        }],
        cpu_s: 0.5,
        series_s: 1,
        ..Report::default()
    }
}

fn of_workflow() -> Merge {
    Merge::of_workflow("Load", &["hit".to_owned()])
}

fn totals(merge: &Merge) -> Vec<(u32, u64)> {
    let values = merge.series(0).into_iter().filter(|value| value.total > 0);
    values.map(|value| (value.at_s, value.total)).collect()
}

#[test]
fn a_report_reads_as_it_was_written() {
    let report = report(3, 7, 100, (0..40).map(|second| point(second, 2)).collect());
    let data = report.encode();
    assert_eq!(Report::decode(&data).unwrap(), report);
    for end in 0..data.len() {
        assert!(Report::decode(&data[..end]).is_err(), "{end} of {} bytes", data.len());
    }
    let longer = [data.as_slice(), &[0]].concat();
    assert_eq!(Report::decode(&longer), Err(DecodeError::Trailing));
}

#[test]
fn numbers_of_any_size_read_as_they_were_written() {
    for number in (0..64).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]) {
        let mut writer = Writer::default();
        writer.uint(number);
        assert_eq!(Reader::new(&writer.out).uint().unwrap(), number);
        let mut raw = Reader::new(&writer.out);
        assert_eq!(raw.raw().unwrap(), writer.out.as_slice());
        assert!(raw.is_empty());
    }
    assert!(Reader::new(&[0xff]).uint().is_err());
    assert_eq!(Reader::new(&[0xff]).float().unwrap(), -1.0);
    assert_eq!(Reader::new(&[0xd1, 0xff, 0x00]).float().unwrap(), -256.0);
}

#[test]
fn a_claimed_length_reserves_nothing() {
    // An array of 2^32 - 1 steps, and a chain of as many nested arrays as there are bytes.
    let mut writer = Writer::default();
    writer.map(1);
    writer.text("steps");
    writer.out.extend([0xdd, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(Report::decode(&writer.out), Err(DecodeError::Truncated));
    let mut nested = Writer::default();
    nested.map(1);
    nested.text("newer");
    nested.out.extend(vec![0x91; 1 << 20]);
    assert_eq!(Report::decode(&nested.out), Err(DecodeError::Truncated));
}

#[test]
fn reports_merge_alike_in_any_order() {
    let reports: Vec<Arc<Report>> = (0..3)
        .flat_map(|slot| (1..6).map(move |at| (slot, at)))
        .map(|(slot, at)| Arc::new(report(slot, at, 10 * at, vec![point(at as u32, 3)])))
        .collect();
    let mut forwards = of_workflow();
    let mut backwards = of_workflow();
    for report in &reports {
        assert!(forwards.apply(report, 1, None).unwrap());
        assert!(!forwards.apply(report, 1, None).unwrap());
    }
    for report in reports.iter().rev() {
        assert_eq!(backwards.apply(report, 1, None).unwrap(), report.sequence == 5);
    }
    assert_eq!(forwards.counts(0).unwrap().total, 150);
    assert_eq!(forwards.counts(0), backwards.counts(0));
    assert_eq!(forwards.latency(0).encode().unwrap(), backwards.latency(0).encode().unwrap());
    assert_eq!(totals(&forwards), [(1, 9), (2, 9), (3, 9), (4, 9), (5, 9)]);
    assert_eq!(totals(&forwards), totals(&backwards));
    assert_eq!(forwards.checks(&[]), backwards.checks(&[]));
    assert_eq!((forwards.vus(), forwards.iterations()), (6, 150));
}

#[test]
fn counts_that_were_added_are_subtracted_exactly() {
    let mut sum = Counts::default();
    let one = Counts { total: u64::MAX, ok: u64::MAX, ..Counts::default() };
    let other = report(0, 1, 7, Vec::new()).steps[0].counts.clone();
    sum.add(&one);
    sum.add(&other);
    sum.subtract(&one);
    assert_eq!(sum, other);
    sum.subtract(&other);
    assert_eq!(sum, Counts::default());
}

#[test]
fn a_step_that_the_latest_report_leaves_out_has_no_counts() {
    let mut merge = of_workflow();
    merge.apply(&Arc::new(report(0, 1, 10, Vec::new())), 1, None).unwrap();
    let empty = Report { steps: Vec::new(), ..report(0, 2, 0, Vec::new()) };
    merge.apply(&Arc::new(empty), 1, None).unwrap();
    assert_eq!(merge.counts(0).unwrap(), &Counts::default());
}

#[test]
fn a_foreign_report_changes_nothing() {
    let mut merge = of_workflow();
    let other = Report { workflow: "Other".into(), ..report(0, 1, 1, Vec::new()) };
    let refused = merge.apply(&Arc::new(other), 1, None);
    assert!(matches!(refused, Err(MergeError::Workflow { .. })));
    let mut unknown = report(0, 1, 1, Vec::new());
    unknown.steps[0].name = "other".into();
    assert!(matches!(merge.apply(&Arc::new(unknown), 1, None), Err(MergeError::Step { .. })));
    assert_eq!((merge.version(), merge.parts()), (0, 0));
}

#[test]
fn merged_reports_tell_the_seconds_that_were_not_acknowledged() {
    let mut merge = Merge::of_part("Load", 120, 300);
    let told = |merge: &mut Merge, at: u32| -> Vec<u32> {
        merge.apply(&Arc::new(report(0, u64::from(at), 1, vec![point(at, 1)])), 0, None).unwrap();
        let merged = merge.merged(4, u64::from(at), true, true, Telling::Newest(3)).unwrap();
        assert_eq!((merged.slot, merged.sequence), (4, u64::from(at)));
        merged.steps[0].series.iter().map(|point| point.second).collect()
    };
    assert_eq!(told(&mut merge, 1), [1]);
    assert_eq!(told(&mut merge, 2), [1, 2]);
    merge.acknowledge();
    assert_eq!(told(&mut merge, 3), [3]);
    assert_eq!(told(&mut merge, 4), [3, 4]);
    assert_eq!(told(&mut merge, 5), [3, 4, 5]);
    assert_eq!(told(&mut merge, 6), [4, 5, 6]);
    merge.acknowledge();
    merge.retell();
    assert_eq!(told(&mut merge, 7), [5, 6, 7]);
}

#[test]
fn a_whole_report_of_a_long_run_holds_every_request() {
    let mut merge = Merge::of_part("Load", 20, 300);
    for at in 0..700 {
        let series = vec![point(at, 2)];
        merge.apply(&Arc::new(report(0, u64::from(at) + 1, 2, series)), 0, None).unwrap();
    }
    let whole = merge.merged(0, 1, true, true, Telling::Whole(4_000)).unwrap();
    let series = &whole.steps[0].series;
    assert_eq!(whole.series_s, 10);
    assert_eq!(series.iter().map(|point| point.total).sum::<u64>(), 1_400);
    assert!(series.len() < 100 && series.is_sorted_by(|one, next| one.second < next.second));
    let mut received = of_workflow();
    received.apply(&Arc::new(whole), 1, None).unwrap();
    assert_eq!(totals(&received).len(), 70);
    assert_eq!(totals(&received).iter().map(|(_, total)| total).sum::<u64>(), 1_400);
}

#[test]
fn the_last_report_of_an_attempt_is_bounded_and_complete() {
    for parts in [1, 1_000, 100_000] {
        let mut merge = of_workflow();
        for at in 0..2_000 {
            let series = vec![point(at, 1)];
            let report = Arc::new(report(0, u64::from(at) + 1, u64::from(at) + 1, series));
            merge.apply(&report, 1, Some(parts)).unwrap();
        }
        let last = merge.last_report(0, 1).unwrap();
        let series = &last.steps[0].series;
        assert_eq!(series.iter().map(|point| point.total).sum::<u64>(), 2_000);
        assert!(series.len() <= 10_000.min(400_000 / parts) + 1_000.min(32_000 / parts).max(15));
        let timed = series.iter().filter(|point| point.latency.is_some()).count();
        assert_eq!(timed, 1_000.min(32_000 / parts));
        let checkpoint = merge.checkpoint(0, 1).unwrap();
        assert!(checkpoint.steps[0].series.is_empty() && checkpoint.steps[0].phases.is_none());
        assert_eq!(checkpoint.steps[0].latency, last.steps[0].latency);
        merge.end_attempt(0, 1);
        assert!(merge.last_report(0, 1).unwrap().steps[0].series.is_empty());
    }
    assert_eq!(of_workflow().last_report(0, 1), None);
}

#[test]
fn reports_shed_histograms_before_counts() {
    let mut reports = [report(0, 1, 400, (0..400).map(|second| point(second, 1)).collect())];
    let whole = reports[0].encode().len();
    assert_eq!(shed(&mut reports, whole)[0].len(), whole);
    shed(&mut reports, whole / 2);
    let series = &reports[0].steps[0].series;
    assert_eq!(series.len(), 400);
    assert!(series[0].latency.is_none() && series[399].latency.is_some());
    let least = shed(&mut reports, 0);
    assert_eq!(Report::decode(&least[0]).unwrap().steps[0].counts.total, 400);
    assert!(reports[0].steps[0].series.is_empty());
}
