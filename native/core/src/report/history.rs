//! The seconds that one attempt has reported of one step, for the day it is given up: a worker
//! that dies tells none of them again. Bounded: only the newest keep their histograms, older ones
//! keep their counts, in wider intervals the longer the run.

use std::collections::BTreeMap;

use super::series::{start_of, tier_of_width, widened, width_of};
use super::Point;

/// Points that attempts of one workflow keep, all parts and steps together...
const TIMED_POINTS_OF_ALL: usize = 32_000;
const COUNTED_POINTS_OF_ALL: usize = 400_000;
/// ... and the attempts of one part, all steps together.
const TIMED_POINTS_MAX: usize = 1_000;
const COUNTED_POINTS_MAX: usize = 10_000;
/// Seconds of each step that stay single points: those that reports may still repeat.
const SINGLE_S: usize = 15;

/// How many points the history of one step of one attempt may have.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    timed: usize,
    counted: usize,
}

impl Budget {
    pub fn of(parts: usize, steps: usize) -> Self {
        let (parts, steps) = (parts.max(1), steps.max(1));
        Self {
            timed: TIMED_POINTS_MAX.min(TIMED_POINTS_OF_ALL / parts) / steps,
            counted: (COUNTED_POINTS_MAX.min(COUNTED_POINTS_OF_ALL / parts) / steps).max(2),
        }
    }
}

#[derive(Debug, Default)]
pub struct History {
    tier: usize,
    /// Counts only, in intervals of the tier's width.
    old: Vec<Point>,
    old_until_s: u32,
    /// Single seconds.
    new: BTreeMap<u32, Point>,
}

impl History {
    /// Takes the points of one report; `series_s` is how wide its widest point is.
    pub fn offer(&mut self, points: &[Point], series_s: u32, budget: Budget) {
        if points.is_empty() {
            return;
        }
        if series_s > 1 {
            // The report has all seconds, the old ones together.
            *self = Self { tier: tier_of_width(series_s), ..Self::default() };
        }
        for point in points.iter().filter(|point| point.second >= self.old_until_s) {
            match self.new.get(&point.second) {
                Some(known) if known.size() >= point.size() => {}
                _ => drop(self.new.insert(point.second, point.clone())),
            }
        }
        while self.new.len() > budget.timed.max(SINGLE_S) {
            let Some((_, point)) = self.new.pop_first() else { break };
            self.add_old(point, budget);
        }
    }

    fn add_old(&mut self, point: Point, budget: Budget) {
        self.old_until_s = point.second + 1;
        let at_s = start_of(point.second, width_of(self.tier));
        match self.old.last_mut() {
            Some(last) if last.second >= at_s => {
                last.total = last.total.wrapping_add(point.total);
                last.failed = last.failed.wrapping_add(point.failed);
                last.sent = last.sent.wrapping_add(point.sent);
            }
            _ => self.old.push(Point { second: at_s, latency: None, ..point }),
        }
        if self.old.len() > budget.counted && width_of(self.tier + 1) > width_of(self.tier) {
            self.tier += 1;
            self.old = widened(self.old.iter(), width_of(self.tier));
        }
    }

    /// All of it in order, and how wide the widest point is.
    pub fn points(&self, budget: Budget) -> (Vec<Point>, u32) {
        let untimed = self.new.len().saturating_sub(budget.timed);
        let new = self.new.values().enumerate().map(|(place, point)| Point {
            latency: point.latency.clone().filter(|_| place >= untimed),
            ..*point
        });
        (self.old.iter().cloned().chain(new).collect(), width_of(self.tier))
    }
}
