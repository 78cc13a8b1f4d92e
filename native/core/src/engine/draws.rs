//! What an iteration of a native program draws: the alternatives that it runs, and the rows of
//! feeds that it takes.
//!
//! Everything follows from the number of the iteration (the k-th one that slot s of S begins has
//! the number s + k·S) or from the number of the user, so it is the same in every run, and does not
//! depend on timing. On a cluster, a slot uses rows that are dealt once only below a limit, which is
//! raised while it runs. The twin of `hyperscale/plan/alternatives.py` and `hyperscale/execution/feeds.py`;
//! tests compare them.

use crate::shape::SplitMix;

/// Steps of which each iteration runs one.
#[derive(Clone, Debug)]
pub struct Choice {
    pub seed: u64,
    /// Where the share of each alternative ends, from 0 to 1, without the last.
    pub bounds: Vec<f64>,
    /// By alternative: the positions of the steps that do not run if it is chosen.
    pub left_out: Vec<Vec<usize>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    Circular,
    Random,
    Once,
}

#[derive(Clone, Copy, Debug)]
pub struct Feed {
    pub take: Take,
    /// A user has one row for good; otherwise each iteration has its own.
    pub per_vu: bool,
    /// The first row of those it deals.
    pub first: u64,
    /// How many rows it deals.
    pub rows: u64,
    pub seed: u64,
}

impl Feed {
    /// The row that belongs to a number; None: there is none left.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn row(&self, number: u64) -> Option<usize> {
        let row = match self.take {
            Take::Circular => number.checked_rem(self.rows)?,
            Take::Once => Some(number).filter(|&number| number < self.rows)?,
            Take::Random => (SplitMix::new(self.seed, number).fraction() * self.rows as f64) as u64,
        };
        Some((self.first + row) as usize)
    }
}

/// What an iteration finds when it is about to begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawn {
    Rows,
    /// A feed has no row left.
    Nothing,
    /// The slot may not use the next rows yet.
    Later,
}

#[derive(Clone, Debug)]
pub struct Draws {
    pub choices: Vec<Choice>,
    pub feeds: Vec<Feed>,
    pub slots: u64,
    pub slot: u64,
    /// Iterations that were drawn for, those of earlier attempts of the slot included.
    pub drawn: u64,
    /// Up to how many the slot may draw for now; None: any number.
    pub limit: Option<u64>,
    /// The number of the slot's first user; the others follow `slots` apart.
    pub first_vu: u64,
    /// Users of earlier attempts of the slot, whose rows are not dealt again.
    pub users_before: u64,
}

impl Draws {
    /// Draws for the next iteration of a user: the row of each feed goes to `rows`, the position of
    /// each step that does not run to `leave_out`.
    pub fn begin(
        &mut self,
        user: usize,
        rows: &mut Vec<usize>,
        mut leave_out: impl FnMut(usize),
    ) -> Drawn {
        let number = self.slot + self.drawn * self.slots;
        let vu = self.first_vu + user as u64 * self.slots;
        let fresh_vu = self.slot + (self.users_before + user as u64) * self.slots;
        rows.clear();
        for feed in &self.feeds {
            let taker = match (feed.per_vu, feed.take) {
                (false, _) => number,
                (true, Take::Once) => fresh_vu,
                (true, _) => vu,
            };
            let Some(row) = feed.row(taker) else { return Drawn::Nothing };
            rows.push(row);
        }
        if self.is_short() {
            return Drawn::Later;
        }
        self.drawn += 1;
        for choice in &self.choices {
            let at = SplitMix::new(choice.seed, number).fraction();
            let chosen = choice.bounds.partition_point(|&bound| bound <= at);
            for &position in choice.left_out.get(chosen).into_iter().flatten() {
                leave_out(position);
            }
        }
        Drawn::Rows
    }

    /// The slot has used all that it may use now.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.limit.is_some_and(|limit| self.drawn >= limit)
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::{Choice, Drawn, Draws, Feed, Take};

    fn draws(choices: Vec<Choice>, feeds: Vec<Feed>, slots: u64, slot: u64) -> Draws {
        let (drawn, limit, first_vu, users_before) = (0, None, slot, 0);
        Draws { choices, feeds, slots, slot, drawn, limit, first_vu, users_before }
    }

    fn feed(take: Take, per_vu: bool) -> Feed {
        Feed { take, per_vu, first: 0, rows: 3, seed: 7 }
    }

    #[test]
    fn slots_take_different_rows_and_together_all_of_them() {
        let mut of_slots = [0, 1].map(|slot| {
            draws(Vec::new(), vec![feed(Take::Circular, false), feed(Take::Once, true)], 2, slot)
        });
        let mut rows = Vec::new();
        let mut taken = Vec::new();
        for _ in 0..3 {
            for slot in &mut of_slots {
                assert_eq!(slot.begin(0, &mut rows, |_| ()), Drawn::Rows);
                taken.push(rows.clone());
            }
        }
        assert_eq!(taken.iter().map(|rows| rows[0]).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        assert_eq!(taken.iter().map(|rows| rows[1]).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1]);
        assert_eq!(of_slots[1].begin(1, &mut rows, |_| ()), Drawn::Nothing); // user 3 of 3 rows
    }

    #[test]
    fn alternatives_have_their_shares() {
        let choice = Choice { seed: 1, bounds: vec![0.75], left_out: vec![vec![1], vec![0]] };
        let mut draws = draws(vec![choice], Vec::new(), 1, 0);
        let mut left_out = [0_u32; 2];
        for _ in 0..10_000 {
            let drawn = draws.begin(0, &mut Vec::new(), |position| left_out[position] += 1);
            assert_eq!(drawn, Drawn::Rows);
        }
        assert_eq!(left_out[0] + left_out[1], 10_000);
        assert!((2_300..2_700).contains(&left_out[0]), "{left_out:?}");
    }

    #[test]
    fn a_slot_draws_no_row_at_or_above_its_limit() {
        let mut draws = draws(Vec::new(), vec![feed(Take::Once, false)], 1, 0);
        draws.limit = Some(2);
        let mut rows = Vec::new();
        assert_eq!(draws.begin(0, &mut rows, |_| ()), Drawn::Rows);
        assert_eq!(draws.begin(0, &mut rows, |_| ()), Drawn::Rows);
        assert_eq!(draws.begin(0, &mut rows, |_| ()), Drawn::Later);
        draws.limit = Some(9);
        assert_eq!(draws.begin(0, &mut rows, |_| ()), Drawn::Rows);
        assert_eq!(rows, [2]);
        assert_eq!(draws.begin(0, &mut rows, |_| ()), Drawn::Nothing); // no limit brings row 3
    }

    #[test]
    fn a_later_attempt_and_a_range_of_rows_have_offsets() {
        let of_range = |per_vu| Feed { take: Take::Once, per_vu, first: 100, rows: 50, seed: 7 };
        let mut draws = draws(Vec::new(), vec![of_range(false), of_range(true)], 2, 1);
        (draws.drawn, draws.users_before, draws.first_vu) = (10, 4, 31);
        let mut rows = Vec::new();
        assert_eq!(draws.begin(3, &mut rows, |_| ()), Drawn::Rows);
        assert_eq!(rows, [100 + 1 + 10 * 2, 100 + 1 + (4 + 3) * 2]);
    }
}
