//! The time series of one step: a bounded number of cells, whatever the length of the run.
//!
//! A second stays open, with one point for each part, while parts may still report it; then it is
//! closed, its parts folded into one cell. Cells roll up into wider tiers as they complete, so a
//! long run is shown in cells of 10 s or 1 min without a pause to thin it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::{joined, merged, Encoded, Point};
use crate::hist::Histogram;

pub const TIERS_S: [u32; 5] = [1, 10, 60, 600, WIDEST_S];
pub const WIDEST_S: u32 = 7200;
/// Cells kept of each tier; the widest tier spans more than the longest run that is allowed.
pub const CELLS_MAX: usize = 600;

/// The finest tier that holds a run of this length whole.
#[must_use]
pub fn tier_for(elapsed_s: f64) -> usize {
    let holds = |width_s: &u32| elapsed_s <= f64::from(*width_s) * CELLS_MAX as f64;
    TIERS_S.iter().position(holds).unwrap_or(TIERS_S.len() - 1)
}

/// The finest tier whose cells are at least this wide.
#[must_use]
pub fn tier_of_width(width_s: u32) -> usize {
    TIERS_S.iter().position(|&tier_s| width_s <= tier_s).unwrap_or(TIERS_S.len() - 1)
}

/// The width of the cells of a tier.
pub fn width_of(tier: usize) -> u32 {
    TIERS_S.get(tier).copied().unwrap_or(1)
}

/// Where the interval of this width begins that holds `at_s`.
pub const fn start_of(at_s: u32, width_s: u32) -> u32 {
    at_s - at_s % width_s
}

/// What finished within one interval; its histogram is that of all `latencies`.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    pub at_s: u32,
    pub total: u64,
    pub failed: u64,
    pub sent: u64,
    pub latencies: Vec<Encoded>,
}

impl Cell {
    fn of(point: &Point) -> Self {
        Self::gathered(point.second, std::iter::once(point))
    }

    fn gathered<'a>(at_s: u32, points: impl Iterator<Item = &'a Point>) -> Self {
        let mut cell = Self { at_s, ..Self::default() };
        for point in points {
            cell.total = cell.total.wrapping_add(point.total);
            cell.failed = cell.failed.wrapping_add(point.failed);
            cell.sent = cell.sent.wrapping_add(point.sent);
            cell.latencies.extend(point.latency.iter().cloned());
        }
        cell
    }

    fn add(&mut self, other: Self) {
        self.total = self.total.wrapping_add(other.total);
        self.failed = self.failed.wrapping_add(other.failed);
        self.sent = self.sent.wrapping_add(other.sent);
        self.latencies.extend(other.latencies);
    }

    /// The cell of a step of which only the requests are shown.
    pub fn of_requests(self) -> Self {
        Self { at_s: self.at_s, sent: self.sent, ..Self::default() }
    }

    /// The same cell with at most one histogram.
    fn folded(mut self) -> Self {
        if self.latencies.len() > 1 {
            self.latencies = joined(self.latencies.iter()).into_iter().collect();
        }
        self
    }

    pub fn point(self) -> Point {
        let mut cell = self.folded();
        Point {
            second: cell.at_s,
            total: cell.total,
            failed: cell.failed,
            sent: cell.sent,
            latency: cell.latencies.pop(),
        }
    }
}

/// Cells of the same interval of this width together, in order.
fn rolled(cells: impl Iterator<Item = Cell>, width_s: u32) -> Vec<Cell> {
    let mut intervals: BTreeMap<u32, Cell> = BTreeMap::new();
    for cell in cells {
        let at_s = start_of(cell.at_s, width_s);
        intervals.entry(at_s).or_insert_with(|| Cell { at_s, ..Cell::default() }).add(cell);
    }
    intervals.into_values().collect()
}

/// The points with all that are in the same interval of this width made one.
pub fn widened<'a>(points: impl Iterator<Item = &'a Point>, width_s: u32) -> Vec<Point> {
    rolled(points.map(Cell::of), width_s).into_iter().map(Cell::point).collect()
}

/// One interval as people see it; percentiles are None if nothing was timed in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SeriesValue {
    pub at_s: u32,
    pub total: u64,
    pub failed: u64,
    pub sent: u64,
    pub p50_ms: Option<f64>,
    pub p90_ms: Option<f64>,
    pub p95_ms: Option<f64>,
    pub p99_ms: Option<f64>,
}

/// What finished within some seconds, of one step or several.
#[derive(Debug)]
pub struct Window {
    pub begins_s: u32,
    pub seconds: u32,
    /// How much later the next window begins.
    pub step_s: u32,
    pub total: u64,
    pub failed: u64,
    pub latency: Histogram,
}

/// Cells as values, with the empty intervals from 0 to `until_s` filled in. Cells of the same
/// interval, from several steps, are merged. A value among `known` with the same counts is taken
/// as it is: an interval only grows, so it did not change.
pub fn values(
    cells: impl Iterator<Item = Cell>,
    width_s: u32,
    until_s: f64,
    known: &[SeriesValue],
) -> Vec<SeriesValue> {
    let found = rolled(cells, width_s);
    if found.is_empty() && until_s <= 0.0 {
        return Vec::new();
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let shown_s = start_of((until_s - 1e-9).max(0.0) as u32, width_s);
    let last_s = found.last().map_or(0, |cell| cell.at_s).max(shown_s);
    let mut cells = found.into_iter().peekable();
    let mut known = known.iter().peekable();
    let mut shown = Vec::new();
    let mut at_s = 0;
    while at_s <= last_s {
        while known.next_if(|value| value.at_s < at_s).is_some() {}
        let cell = cells.next_if(|cell| cell.at_s == at_s);
        let cell = cell.unwrap_or_default();
        let is_same = |value: &&SeriesValue| {
            (value.at_s, value.total, value.sent) == (at_s, cell.total, cell.sent)
        };
        shown.push(match known.next_if(is_same) {
            Some(value) => *value,
            None => value_of(at_s, cell),
        });
        at_s += width_s;
    }
    shown
}

#[allow(clippy::cast_precision_loss)]
fn value_of(at_s: u32, cell: Cell) -> SeriesValue {
    const NS_PER_MS: f64 = 1e6;
    let mut percentiles_ms = [None; 4];
    if !cell.latencies.is_empty() {
        let histogram = merged(cell.latencies.iter().map(|payload| &**payload));
        if histogram.count() > 0 {
            percentiles_ms = [0.50, 0.90, 0.95, 0.99]
                .map(|quantile| Some(histogram.quantile(quantile) as f64 / NS_PER_MS));
        }
    }
    let [p50_ms, p90_ms, p95_ms, p99_ms] = percentiles_ms;
    let Cell { total, failed, sent, .. } = cell;
    SeriesValue { at_s, total, failed, sent, p50_ms, p90_ms, p95_ms, p99_ms }
}

/// Whether the receiver of merged reports has a second as it now is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Told {
    #[default]
    No,
    /// It is in the report under way.
    UnderWay,
    Yes,
}

#[derive(Debug, Default)]
struct Second {
    parts: HashMap<u32, Point>,
    /// The parts as one point, once that was asked for.
    joined: Option<Point>,
    told: Told,
}

#[derive(Debug, Default)]
struct Tier {
    cells: VecDeque<Cell>,
    /// Cells of the tier below that have not filled a cell of this tier yet.
    pending: Vec<Cell>,
}

impl Tier {
    fn add(&mut self, cell: Cell) {
        let place = self.cells.partition_point(|kept| kept.at_s < cell.at_s);
        match self.cells.get_mut(place) {
            Some(kept) if kept.at_s == cell.at_s => {
                let mut sum = std::mem::take(kept);
                sum.add(cell);
                *kept = sum.folded();
            }
            _ => self.cells.insert(place, cell),
        }
        if self.cells.len() > CELLS_MAX {
            self.cells.pop_front();
        }
    }
}

/// The cells of one step, merged over its parts.
#[derive(Debug, Default)]
pub struct StepSeries {
    open: BTreeMap<u32, Second>,
    open_from_s: u32,
    tiers: [Tier; TIERS_S.len()],
    /// The last second of each part that is in a closed cell.
    folded_s: HashMap<u32, u32>,
}

impl StepSeries {
    /// Takes points of one part.
    ///
    /// A second only grows, so of two points of it the larger is the later, in whatever order
    /// they come. A second that was closed without this part is taken late; one that was closed
    /// with it is not counted again.
    pub fn offer(&mut self, part: u32, points: &[Point]) {
        if points.is_empty() {
            return;
        }
        let folded_s = self.folded_s.get(&part).copied();
        for point in points {
            let is_late = point.second < self.open_from_s;
            if is_late && folded_s.is_some_and(|last_s| point.second <= last_s) {
                continue;
            }
            let second = self.open.entry(point.second).or_default();
            if second.parts.get(&part).is_some_and(|known| known.size() >= point.size()) {
                continue;
            }
            second.parts.insert(part, point.clone());
            second.joined = None;
            second.told = if is_late { Told::Yes } else { Told::No };
        }
    }

    /// Folds every second below `before_s`: the points its parts reported are final. With
    /// `timed`, histograms are merged; otherwise only those that are one already stay.
    pub fn close(&mut self, before_s: u32, timed: bool) {
        if before_s <= self.open_from_s {
            return;
        }
        let still_open = self.open.split_off(&before_s);
        for (at_s, second) in std::mem::replace(&mut self.open, still_open) {
            for &part in second.parts.keys() {
                let last_s = self.folded_s.entry(part).or_default();
                *last_s = at_s.max(*last_s);
            }
            let cell = match second.joined {
                Some(point) => Cell::of(&point),
                None => {
                    let mut cell = Cell::gathered(at_s, second.parts.values());
                    if !timed && cell.latencies.len() > 1 {
                        cell.latencies.clear();
                    }
                    cell.folded()
                }
            };
            self.push(0, cell);
        }
        self.open_from_s = before_s;
    }

    /// Adds a cell to a tier, and in time to the tiers above it.
    fn push(&mut self, tier: usize, cell: Cell) {
        let Some(tier_cells) = self.tiers.get_mut(tier) else { return };
        tier_cells.add(cell.clone());
        let above = tier + 1;
        let Some(above_tier) = self.tiers.get_mut(above) else { return };
        let width_s = width_of(above);
        let at_s = start_of(cell.at_s, width_s);
        let pending_s =
            above_tier.pending.first().map_or(at_s, |first| start_of(first.at_s, width_s));
        if at_s < pending_s {
            // Late: its wider cell was completed without it.
            self.push(above, Cell { at_s, ..cell });
            return;
        }
        let complete = if at_s > pending_s {
            rolled(std::mem::take(&mut above_tier.pending).into_iter(), width_s)
        } else {
            Vec::new()
        };
        above_tier.pending.push(cell);
        for wide in complete {
            self.push(above, wide.folded());
        }
    }

    /// Closed cells that no cell of `tier` holds yet.
    fn loose(&self, tier: usize) -> impl Iterator<Item = Cell> + '_ {
        self.tiers.iter().skip(1).take(tier).flat_map(|above| above.pending.iter().cloned())
    }

    /// All cells at a tier's width; the youngest may still grow, and come in pieces.
    pub fn cells(&self, tier: usize) -> impl Iterator<Item = Cell> + '_ {
        let open = self.open.iter().map(|(&at_s, second)| match &second.joined {
            Some(point) => Cell::of(point),
            None => Cell::gathered(at_s, second.parts.values()),
        });
        let closed = self.tiers.get(tier).into_iter().flat_map(|tier| tier.cells.iter().cloned());
        let pieces = rolled(self.loose(tier).chain(open), width_of(tier));
        closed.chain(pieces)
    }

    /// The finest tier that still holds the cells from `at_s` on.
    pub fn tier_holding(&self, at_s: u32) -> usize {
        let holds = |tier: &Tier| {
            let is_whole = tier.cells.len() < CELLS_MAX;
            is_whole || tier.cells.front().is_some_and(|first| first.at_s <= at_s)
        };
        self.tiers.iter().position(holds).unwrap_or(TIERS_S.len() - 1)
    }

    /// What was closed, and what came late for it, as points of the tier's width.
    pub fn past(&self, tier: usize) -> Vec<Point> {
        let late = self.open.range(..self.open_from_s);
        let late = late.map(|(&at_s, second)| Cell::gathered(at_s, second.parts.values()));
        let closed = self.tiers.get(tier).into_iter().flat_map(|tier| tier.cells.iter().cloned());
        let cells = closed.chain(self.loose(tier)).chain(late);
        rolled(cells, width_of(tier)).into_iter().map(Cell::point).collect()
    }

    /// Seconds that are open and not late.
    pub fn recent(&self) -> usize {
        self.open.range(self.open_from_s..).count()
    }

    pub fn newest_s(&self) -> Option<u32> {
        self.open.last_key_value().map(|(&at_s, _)| at_s)
    }

    // -- telling a receiver the seconds it does not have

    /// No answer came for the last report: the seconds in it are untold.
    pub fn lose(&mut self) {
        self.retell(Told::UnderWay, Told::No);
    }

    /// The receiver has the last report.
    pub fn take(&mut self) {
        self.retell(Told::UnderWay, Told::Yes);
    }

    /// A new receiver has nothing yet.
    pub fn forget_told(&mut self) {
        for (_, second) in self.open.range_mut(self.open_from_s..) {
            second.told = Told::No;
        }
    }

    fn retell(&mut self, from: Told, to: Told) {
        for second in self.open.values_mut().filter(|second| second.told == from) {
            second.told = to;
        }
    }

    /// The newest untold seconds, at most `count`; older ones are given up.
    pub fn tell(&mut self, count: usize) -> Vec<Point> {
        let mut points = Vec::new();
        for (&at_s, second) in self.open.iter_mut().rev() {
            if second.told != Told::No {
                continue;
            }
            if points.len() == count {
                second.told = Told::Yes;
                continue;
            }
            second.told = Told::UnderWay;
            points.push(second.point(at_s, true));
        }
        points.reverse();
        points
    }

    /// All seconds that are open and not late. Histograms that were not merged yet are merged for
    /// the newest `timed_max` only.
    pub fn tell_all(&mut self, timed_max: usize) -> Vec<Point> {
        let untimed = self.recent().saturating_sub(timed_max);
        let seconds = self.open.range_mut(self.open_from_s..).enumerate();
        seconds.map(|(place, (&at_s, second))| second.point(at_s, place >= untimed)).collect()
    }
}

impl Second {
    fn point(&mut self, at_s: u32, timed: bool) -> Point {
        if let Some(point) = &self.joined {
            return point.clone();
        }
        let mut cell = Cell::gathered(at_s, self.parts.values());
        if !timed {
            cell.latencies.clear();
            return cell.point();
        }
        let point = cell.point();
        self.joined = Some(point.clone());
        point
    }
}
