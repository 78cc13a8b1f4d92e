//! What an iteration of a native program draws: the alternatives that it runs, and the rows of
//! feeds that it takes.
//!
//! Everything follows from the number of the iteration (the k-th one that slot s of S begins has
//! the number s + k·S) or from the number of the user, so it is the same in every run, and does not
//! depend on timing. The twin of `hyperscale/plan/alternatives.py` and `hyperscale/execution/feeds.py`;
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
        Some(row as usize)
    }
}

#[derive(Clone, Debug)]
pub struct Draws {
    pub choices: Vec<Choice>,
    pub feeds: Vec<Feed>,
    /// The number of the next iteration.
    pub next: u64,
    pub slots: u64,
    /// The number of the slot's first user; the others follow `slots` apart.
    pub first_vu: u64,
}

impl Draws {
    /// Draws for the next iteration of a user: the row of each feed goes to `rows`, the position of
    /// each step that does not run to `leave_out`. False: a feed has no row left.
    pub fn begin(
        &mut self,
        user: usize,
        rows: &mut Vec<usize>,
        mut leave_out: impl FnMut(usize),
    ) -> bool {
        let number = self.next;
        self.next += self.slots;
        let vu = self.first_vu + user as u64 * self.slots;
        rows.clear();
        for feed in &self.feeds {
            let Some(row) = feed.row(if feed.per_vu { vu } else { number }) else { return false };
            rows.push(row);
        }
        for choice in &self.choices {
            let at = SplitMix::new(choice.seed, number).fraction();
            let chosen = choice.bounds.partition_point(|&bound| bound <= at);
            for &position in choice.left_out.get(chosen).into_iter().flatten() {
                leave_out(position);
            }
        }
        true
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::{Choice, Draws, Feed, Take};

    fn draws(choices: Vec<Choice>, feeds: Vec<Feed>, slots: u64, slot: u64) -> Draws {
        Draws { choices, feeds, next: slot, slots, first_vu: slot }
    }

    fn feed(take: Take, per_vu: bool) -> Feed {
        Feed { take, per_vu, rows: 3, seed: 7 }
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
                assert!(slot.begin(0, &mut rows, |_| ()));
                taken.push(rows.clone());
            }
        }
        assert_eq!(taken.iter().map(|rows| rows[0]).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
        assert_eq!(taken.iter().map(|rows| rows[1]).collect::<Vec<_>>(), [0, 1, 0, 1, 0, 1]);
        assert!(!of_slots[1].begin(1, &mut rows, |_| ())); // user 3 of 3 rows
    }

    #[test]
    fn alternatives_have_their_shares() {
        let choice = Choice { seed: 1, bounds: vec![0.75], left_out: vec![vec![1], vec![0]] };
        let mut draws = draws(vec![choice], Vec::new(), 1, 0);
        let mut left_out = [0_u32; 2];
        for _ in 0..10_000 {
            assert!(draws.begin(0, &mut Vec::new(), |position| left_out[position] += 1));
        }
        assert_eq!(left_out[0] + left_out[1], 10_000);
        assert!((2_300..2_700).contains(&left_out[0]), "{left_out:?}");
    }
}
