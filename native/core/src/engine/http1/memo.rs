//! Response heads that were parsed before.

use std::sync::Arc;

use super::decoder::Framing;
use crate::engine::http::reply::{Reply, Version};

const MEMO_BYTES_MAX: usize = 1024;
/// Where every head is another, only one of so many is kept.
const MEMO_EVERY: u32 = 64;
const MEMO_MISSES: u32 = 8;
/// Steps whose last response head is remembered.
const MEMOS_MAX: usize = 1024;

/// A head and what it says.
#[derive(Debug)]
pub struct Known {
    pub head: Arc<[u8]>,
    pub status: u16,
    pub version: Version,
    pub keep_alive: bool,
    pub framing: Framing,
}

/// The last head that responses of a step had, parsed: the next one is often the same, and equal
/// bytes parse equally. A head with cookies, a location or an encoding is not kept here.
#[derive(Debug, Default)]
pub struct HeadMemo {
    known: Option<Known>,
    /// Heads in a row that were not the kept one.
    misses: u32,
}

impl HeadMemo {
    pub fn find(&mut self, input: &[u8]) -> Option<&Known> {
        let known = self.known.as_ref().filter(|known| input.starts_with(&known.head));
        self.misses = if known.is_some() { 0 } else { self.misses.wrapping_add(1) };
        known
    }

    /// Keeps a head, unless heads differ too often. Returns the kept copy.
    pub fn keep(
        &mut self,
        head: &[u8],
        reply: &Reply,
        keep_alive: bool,
        framing: Framing,
    ) -> Option<Arc<[u8]>> {
        let is_kept = self.misses < MEMO_MISSES || self.misses.is_multiple_of(MEMO_EVERY);
        if !is_kept || reply.rare.is_some() || head.len() > MEMO_BYTES_MAX {
            return None;
        }
        let head: Arc<[u8]> = head.into();
        let (status, version) = (reply.status, reply.version);
        self.known = Some(Known { head: head.clone(), status, version, keep_alive, framing });
        Some(head)
    }
}

/// The memos of all steps of an engine.
#[derive(Debug, Default)]
pub struct HeadMemos {
    by_step: Vec<HeadMemo>,
    /// For steps beyond the limit.
    other: HeadMemo,
}

impl HeadMemos {
    pub fn of_step(&mut self, step: u32) -> &mut HeadMemo {
        let step = step as usize;
        if step >= self.by_step.len() && step < MEMOS_MAX {
            self.by_step.resize_with(step + 1, HeadMemo::default);
        }
        self.by_step.get_mut(step).unwrap_or(&mut self.other)
    }
}
