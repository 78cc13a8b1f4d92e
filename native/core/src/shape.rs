//! When arrivals are due. The twin of `hyperscale/plan/shapes.py`, which explains it; tests compare
//! the two.

const WHOLE: f64 = 1e-6;

#[derive(Clone, Copy, Debug)]
struct Piece {
    begin_s: f64,
    end_s: f64,
    from: f64,
    to: f64,
    /// Under all pieces before this one.
    area: f64,
}

impl Piece {
    fn slope(&self) -> f64 {
        (self.to - self.from) / (self.end_s - self.begin_s)
    }
}

/// Stages (seconds, target) as a function of the time since the start of the workflow.
#[derive(Clone, Debug, Default)]
pub struct Shape {
    pieces: Vec<Piece>,
    area: f64,
}

impl Shape {
    #[must_use]
    pub fn new(stages: &[(f64, f64)]) -> Self {
        let (mut pieces, mut begin_s, mut from, mut area) = (Vec::new(), 0.0, 0.0, 0.0);
        for &(duration_s, to) in stages {
            if duration_s > 0.0 {
                let end_s = begin_s + duration_s;
                pieces.push(Piece { begin_s, end_s, from, to, area });
                area += (from + to) / 2.0 * duration_s;
                begin_s = end_s;
            }
            from = to;
        }
        Self { pieces, area }
    }

    /// The area under the shape up to a time.
    #[must_use]
    pub fn area_until(&self, at_s: f64) -> f64 {
        if at_s < 0.0 {
            return 0.0;
        }
        let within = self.pieces.iter().find(|piece| at_s < piece.end_s);
        within.map_or(self.area, |piece| {
            let into_s = at_s - piece.begin_s;
            piece.area + into_s * (piece.from + piece.slope() * into_s / 2.0)
        })
    }

    /// When the area under the shape reaches `area`; None if it never does.
    #[must_use]
    pub fn time_of(&self, area: f64) -> Option<f64> {
        if !(0.0..self.area - WHOLE).contains(&area) {
            return None;
        }
        let piece = self.pieces.iter().take_while(|piece| piece.area <= area).last()?;
        let need = area - piece.area;
        let root = (piece.from * piece.from + 2.0 * piece.slope() * need).max(0.0).sqrt();
        let into_s = if need > 0.0 { 2.0 * need / (piece.from + root) } else { 0.0 };
        Some((piece.begin_s + into_s).min(piece.end_s))
    }
}

/// The arrivals of one slot, in order.
#[derive(Clone, Debug)]
pub struct Arrivals {
    shape: Shape,
    slots: f64,
    area: f64,
    random: Option<SplitMix>,
}

impl Arrivals {
    /// Even, or with a seed a Poisson process.
    #[must_use]
    pub fn new(stages: &[(f64, f64)], slots: u32, slot: u32, seed: Option<u64>) -> Self {
        let mut random = seed.map(|seed| SplitMix::new(seed, u64::from(slot)));
        let slots = f64::from(slots);
        let area = random.as_mut().map_or(f64::from(slot), |random| slots * random.exponential());
        Self { shape: Shape::new(stages), slots, area, random }
    }

    /// Even arrivals that come later, by a part of the distance between two of the workflow.
    #[must_use]
    pub fn shifted(mut self, phase: f64) -> Self {
        if self.random.is_none() {
            self.area += phase;
        }
        self
    }

    /// Goes on with other stages: the numbers of the arrivals go on.
    pub fn reshape(&mut self, stages: &[(f64, f64)]) {
        self.shape = Shape::new(stages);
    }

    /// When the next arrival is due; None: there are no more.
    #[must_use]
    pub fn next_s(&self) -> Option<f64> {
        self.shape.time_of(self.area)
    }

    pub fn advance(&mut self) {
        let gap = self.random.as_mut().map_or(1.0, SplitMix::exponential);
        self.area += self.slots * gap;
    }

    /// Skips the arrivals that were due before a time; returns how many.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    pub fn skip_until(&mut self, at_s: f64) -> u64 {
        let mut skipped = 0;
        if self.random.is_none() {
            let steps = ((self.shape.area_until(at_s) - self.area - WHOLE) / self.slots).ceil();
            skipped = steps.max(0.0) as u64;
            self.area += steps.max(0.0) * self.slots;
        }
        while self.next_s().is_some_and(|due_s| due_s < at_s) {
            self.advance();
            skipped += 1;
        }
        skipped
    }
}

/// `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub struct SplitMix {
    state: u64,
}

impl SplitMix {
    #[must_use]
    pub fn new(seed: u64, stream: u64) -> Self {
        let state = seed
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .wrapping_add(stream.wrapping_mul(0xD1B5_4A32_D192_ED03));
        Self { state }
    }

    /// A number from 0 up to, and without, 1.
    #[allow(clippy::cast_precision_loss)]
    pub fn fraction(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self) -> f64 {
        -(-self.fraction()).ln_1p()
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, Shape};

    #[test]
    fn arrivals_of_a_constant_rate_are_equally_far_apart_and_dealt_in_turn() {
        let stages = [(0.0, 10.0), (2.0, 10.0)];
        let mut arrivals = Arrivals::new(&stages, 2, 1, None);
        let mut found = Vec::new();
        while let Some(due_s) = arrivals.next_s() {
            found.push(due_s);
            arrivals.advance();
        }
        assert_eq!(found.len(), 10);
        assert!(found
            .iter()
            .zip(0..)
            .all(|(due_s, n)| (due_s - 0.1 - 0.2 * f64::from(n)).abs() < 1e-9));
    }

    #[test]
    fn a_late_slot_skips_what_was_due_before() {
        let stages = [(10.0, 100.0), (10.0, 0.0)];
        let mut arrivals = Arrivals::new(&stages, 1, 0, None);
        assert_eq!(arrivals.skip_until(10.0), 500);
        assert!(arrivals.next_s().is_some_and(|due_s| (due_s - 10.0).abs() < 1e-6));
        assert_eq!(Shape::new(&stages).time_of(1000.0), None);
    }
}
