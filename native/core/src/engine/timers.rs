//! Deadlines of requests, and timers of connections, re-armed lazily: a request that ends in time
//! costs nothing.
//!
//! Every slot of the table has at most one entry in the heap. When it comes
//! up, the slot's deadline of that moment decides: expired, or put back.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NOT_QUEUED: u64 = u64::MAX;

#[derive(Debug, Default)]
pub struct Timers {
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// When each slot's entry comes up.
    queued_ns: Vec<u64>,
}

impl Timers {
    /// Makes sure `slot` is looked at no later than `deadline_ns`.
    pub fn arm(&mut self, slot: u32, deadline_ns: u64) {
        let index = slot as usize;
        if self.queued_ns.len() <= index {
            self.queued_ns.resize(index + 1, NOT_QUEUED);
        }
        if let Some(queued_ns) = self.queued_ns.get_mut(index) {
            if deadline_ns < *queued_ns {
                *queued_ns = deadline_ns;
                self.heap.push(Reverse((deadline_ns, slot)));
            }
        }
    }

    /// The next slot to look at, if its time has come.
    pub fn pop(&mut self, now_ns: u64) -> Option<u32> {
        while let Some(&Reverse((at_ns, slot))) = self.heap.peek() {
            if at_ns > now_ns {
                return None;
            }
            self.heap.pop();
            // An entry replaced by an earlier one of the same slot is void.
            if let Some(queued_ns) = self.queued_ns.get_mut(slot as usize) {
                if *queued_ns == at_ns {
                    *queued_ns = NOT_QUEUED;
                    return Some(slot);
                }
            }
        }
        None
    }

    #[must_use]
    pub fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|&Reverse((at_ns, _))| at_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::Timers;

    #[test]
    fn slots_come_up_in_order_and_once() {
        let mut timers = Timers::default();
        timers.arm(0, 30);
        timers.arm(1, 10);
        timers.arm(0, 20);
        timers.arm(0, 90);
        assert_eq!(timers.next_ns(), Some(10));
        assert_eq!(timers.pop(9), None);
        assert_eq!(timers.pop(25), Some(1));
        assert_eq!(timers.pop(25), Some(0));
        assert_eq!(timers.pop(100), None);
        timers.arm(0, 40);
        assert_eq!(timers.pop(100), Some(0));
    }
}
