#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use super::{normalised, FailureLog, FailureRow, Failures, Sample, ROWS_MAX};
use std::sync::Arc;

/// Pseudo-random numbers; the same for the same seed.
fn numbers(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    }
}

fn some_failures(next: &mut impl FnMut(u64) -> u64) -> Failures {
    let classes = ["status", "exception", "connect"];
    let mut found = Failures { other: next(3), ..Failures::default() };
    for _ in 0..next(ROWS_MAX as u64 + 1) {
        let second = next(4) as u32;
        let word: String = (0..3).map(|_| char::from(b'a' + next(4) as u8)).collect();
        let row = FailureRow {
            class: classes[next(3) as usize].into(),
            message: format!("{word} {}", next(100)).into(),
            count: next(9),
            sample: (next(2) == 0).then(|| Arc::new(Sample { second, ..Sample::default() })),
        };
        let key = normalised(&row.message);
        if !found.rows.iter().any(|r| r.class == row.class && normalised(&r.message) == key) {
            found.rows.push(row);
        }
    }
    found
}

fn total(failures: &Failures) -> u64 {
    failures.other + failures.rows.iter().map(|row| row.count).sum::<u64>()
}

#[test]
fn merging_is_associative_commutative_bounded_and_loses_no_count() {
    let mut next = numbers(7);
    for _ in 0..300 {
        let parts: Vec<Failures> = (0..4).map(|_| some_failures(&mut next)).collect();
        let all = Failures::merged(parts.iter());
        assert_eq!(Failures::merged(parts.iter().rev()), all);
        let halves = [Failures::merged(parts[..2].iter()), Failures::merged(parts[2..].iter())];
        assert_eq!(Failures::merged(halves.iter()), all);
        assert_eq!(Failures::merged([&all].into_iter()), all);
        assert!(all.rows.len() <= ROWS_MAX);
        assert_eq!(total(&all), parts.iter().map(total).sum::<u64>());
    }
}

#[test]
fn numbers_and_ids_do_not_make_a_message_another() {
    let same = [
        ("order 17 not found", "order 40312 not found"),
        ("no user 9f1c2b3a-4d5e", "no user 00aa11bb-77"),
        ("KeyError: 'cart-7' (shop.py:12)", "KeyError: 'cart-81' (shop.py:12)"),
    ];
    for (one, other) in same {
        assert_eq!(normalised(one), normalised(other));
    }
    let apart = [
        ("KeyError (shop.py:12)", "KeyError (shop.py:13)"),
        ("refused by 127.0.0.1:81", "refused by 127.0.0.1:82"),
        ("refused by 10.0.0.1:81", "refused by 10.0.0.2:81"),
        ("nothing within 0.5 s", "nothing within 2.5 s"),
        ("größe", "grösse"),
    ];
    for (one, other) in apart {
        assert_ne!(normalised(one), normalised(other));
    }
}

#[test]
fn a_log_samples_each_message_once_and_keeps_its_bounds() {
    let mut log = FailureLog::default();
    let mut samples = 0;
    for n in 0..1000_u64 {
        let letter = char::from(b'a' + (n % 26) as u8);
        let message = format!("{letter} went wrong, {n}: {}", "ü".repeat(10_000));
        log.note("exception", &message, |text| {
            samples += 1;
            (text.into(), Some(Sample { request: "GET /".into(), ..Sample::default() }))
        });
    }
    let mut failures = log.failures();
    assert_eq!((samples, failures.rows.len(), total(&failures)), (ROWS_MAX, ROWS_MAX, 1000));
    assert!(failures.rows.iter().all(|row| row.message.len() <= 400));
    failures.bound(4_000);
    assert!(failures.size_hint() <= 4_000);
    assert_eq!(total(&failures), 1000);
    failures.bound(0);
    assert_eq!((failures.rows.len(), failures.other), (0, 1000));
}
