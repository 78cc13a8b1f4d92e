//! Virtual users over time: a list of changes, each the second from which on (of the workflow) that
//! many were looping. A second with several changes has the most users of them.

use std::collections::BTreeMap;

pub type Users = Vec<(u32, u64)>;

/// Changes kept of one part or workflow: enough for a plot, few enough for every report.
pub const CHANGES_MAX: usize = 120;

/// Notes how many users loop in a second, which is not before the last one noted.
pub fn note(users: &mut Users, second: u32, count: u64) {
    match users.last_mut() {
        Some((last_s, most)) if *last_s == second => *most = count.max(*most),
        Some((_, last)) if *last == count => {}
        _ => users.push((second, count)),
    }
    bound(users);
}

/// The users of several parts together. A part has none after the second in which it ended.
pub fn summed<'a>(parts: impl Iterator<Item = (&'a Users, u32)>) -> Users {
    let mut changes: BTreeMap<u32, i128> = BTreeMap::new();
    for (users, end_s) in parts {
        let mut before = 0;
        let within = users.iter().filter(|&&(second, _)| second < end_s);
        for &(second, count) in within.chain(std::iter::once(&(end_s, 0))) {
            *changes.entry(second).or_default() += i128::from(count) - before;
            before = i128::from(count);
        }
    }
    let mut sum: i128 = 0;
    let mut found = Users::new();
    for (second, change) in changes {
        sum += change;
        let count = u64::try_from(sum).unwrap_or_default();
        if found.last().map_or(0, |&(_, last)| last) != count {
            found.push((second, count));
        }
    }
    bound(&mut found);
    found
}

/// Makes changes that share a wider interval one, until there are at most `CHANGES_MAX`.
fn bound(users: &mut Users) {
    let mut width_s = 2;
    while users.len() > CHANGES_MAX && width_s < u32::MAX / 2 {
        let mut wider = Users::new();
        let mut before = 0; // as many when the interval begins as at the end of the one before
        for &(second, count) in &*users {
            let at_s = second - second % width_s;
            match wider.last_mut() {
                Some((last_s, most)) if *last_s == at_s => *most = count.max(*most),
                _ if at_s == second => wider.push((at_s, count)),
                _ => wider.push((at_s, count.max(before))),
            }
            before = count;
        }
        *users = wider;
        width_s *= 2;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{note, summed, Users, CHANGES_MAX};

    #[test]
    fn only_changes_are_kept_and_of_a_second_its_most() {
        let mut users = Users::new();
        for (second, count) in [(0, 3), (0, 10), (1, 10), (2, 10), (4, 7), (4, 6), (5, 0)] {
            note(&mut users, second, count);
        }
        assert_eq!(users, [(0, 10), (4, 7), (5, 0)]);
    }

    #[test]
    fn parts_add_up_and_those_that_ended_have_no_users() {
        let (first, second, third) = (vec![(0, 5)], vec![(0, 5), (2, 3)], vec![(3, 5)]);
        let parts = [(&first, 3), (&second, 6), (&third, 6)];
        assert_eq!(summed(parts.into_iter()), [(0, 10), (2, 8), (6, 0)]);
        assert_eq!(summed(std::iter::empty()), []);
    }

    #[test]
    fn a_long_ramp_stays_short_and_keeps_its_order_and_its_peak() {
        let mut users = Users::new();
        for second in 0..10_000_u32 {
            note(&mut users, second, u64::from(second.min(10_000 - second)));
        }
        assert!(users.len() <= CHANGES_MAX);
        assert!(users.is_sorted_by(|one, other| one.0 < other.0));
        assert_eq!(users.iter().map(|&(_, count)| count).max().unwrap(), 5_000);
    }
}
