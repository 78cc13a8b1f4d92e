//! Consensus for many groups at once, over TiKV's `raft`.
//!
//! `MultiRaft` holds every group this node takes part in. A host feeds it ticks, messages and
//! proposals, asks for a `Turn`, and does what the turn says: send, write, apply. Nothing here
//! touches a clock, a socket or a disk, and every random number comes from the seed, so a
//! simulation replays exactly.

mod group;
mod image;
mod log;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ::raft::eraftpb::{ConfChangeV2, Message};
use protobuf::Message as _;

pub use group::{Committed, Configuration, Read, Role, Seats, Standing};
pub use image::{GroupImage, GroupWrite, Hard, LogEntry, SnapshotImage, WriteBatch};

use group::Group;

/// Ticks of elections and heartbeats, and how much may be under way.
#[derive(Clone, Debug)]
pub struct Settings {
    pub election_ticks: usize,
    pub heartbeat_ticks: usize,
    pub message_bytes_max: u64,
    pub inflight_messages_max: usize,
    pub uncommitted_bytes_max: u64,
    pub committed_bytes_per_turn: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            election_ticks: 20,
            heartbeat_ticks: 5,
            message_bytes_max: 1024 * 1024,
            inflight_messages_max: 256,
            uncommitted_bytes_max: 32 * 1024 * 1024,
            committed_bytes_per_turn: 1024 * 1024,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    #[error("group {0} is not open here")]
    UnknownGroup(u64),
    #[error("group {0} is open already")]
    AlreadyOpen(u64),
    #[error("the ledger on disk is damaged: {0}")]
    Corrupt(String),
    #[error(
        "the data directory is an older copy: of group {group} it has entries up to {last}, and \
         this node has acknowledged entries up to {acknowledged}"
    )]
    Outdated { group: u64, last: u64, acknowledged: u64 },
    #[error("malformed consensus message: {0}")]
    Malformed(String),
    #[error("{0}")]
    Refused(String),
}

impl RaftError {
    fn codec(error: protobuf::ProtobufError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// What the host has to do now. Messages in `outbox` may leave at once; the ones that promise
/// something durable come with a later turn, after `persisted`.
#[derive(Default)]
pub struct Turn {
    /// All messages for one peer, packed by `pack`.
    pub outbox: BTreeMap<u64, Vec<u8>>,
    /// Snapshots to hand to a peer: the message without its data, which the peer pulls.
    pub snapshots: Vec<SnapshotOffer>,
    pub write: Option<WriteBatch>,
    pub committed: Vec<Committed>,
    pub restored: Vec<(u64, SnapshotImage)>,
    pub reads: Vec<Read>,
    pub standings: Vec<Standing>,
    /// Groups whose followers need a fresher snapshot than the one at hand.
    pub snapshots_wanted: Vec<u64>,
    /// There is more to do: ask for another turn.
    pub more: bool,
}

pub struct SnapshotOffer {
    pub peer: u64,
    pub group: u64,
    pub index: u64,
    pub message: Vec<u8>,
}

/// A batch on its way to the disk and what waits for it.
struct Outstanding {
    number: u64,
    readies: Vec<(u64, u64)>,
    held: Vec<(u64, Message)>,
}

pub struct MultiRaft {
    id: u64,
    seed: u64,
    settings: Settings,
    groups: BTreeMap<u64, Group>,
    dirty: BTreeSet<u64>,
    outstanding: VecDeque<Outstanding>,
    released: Vec<(u64, Message)>,
    next_batch: u64,
}

impl MultiRaft {
    pub fn new(id: u64, seed: u64, settings: Settings) -> Self {
        Self {
            id,
            seed,
            settings,
            groups: BTreeMap::new(),
            dirty: BTreeSet::new(),
            outstanding: VecDeque::new(),
            released: Vec::new(),
            next_batch: 1,
        }
    }

    pub fn id(&self) -> u64 {
        self.id
    }

    /// Takes part in a group from what the disk has of it (or from its first snapshot).
    pub fn open(&mut self, image: GroupImage) -> Result<(), RaftError> {
        let id = image.group;
        if self.groups.contains_key(&id) {
            return Err(RaftError::AlreadyOpen(id));
        }
        let group = Group::new(self.id, self.seed, &self.settings, image)?;
        self.groups.insert(id, group);
        self.dirty.insert(id);
        Ok(())
    }

    pub fn close(&mut self, group: u64) {
        self.groups.remove(&group);
        self.dirty.remove(&group);
        self.released.retain(|(of, _)| *of != group);
        for batch in &mut self.outstanding {
            batch.readies.retain(|(of, _)| *of != group);
            batch.held.retain(|(of, _)| *of != group);
        }
    }

    pub fn groups(&self) -> impl Iterator<Item = &u64> {
        self.groups.keys()
    }

    fn group(&mut self, id: u64) -> Result<&mut Group, RaftError> {
        self.dirty.insert(id);
        self.groups.get_mut(&id).ok_or(RaftError::UnknownGroup(id))
    }

    pub fn tick(&mut self) {
        for (id, group) in &mut self.groups {
            if group.tick() {
                self.dirty.insert(*id);
            }
        }
    }

    /// Takes the messages a peer packed. Returns the groups that are not open here.
    pub fn step(&mut self, sender: u64, packed: &[u8]) -> Result<Vec<u64>, RaftError> {
        let mut unknown = Vec::new();
        let mut rest = packed;
        while !rest.is_empty() {
            let (group, body) = unpack(&mut rest)?;
            let message = Message::parse_from_bytes(body).map_err(RaftError::codec)?;
            if message.from != sender || message.to != self.id {
                return Err(RaftError::Malformed(format!(
                    "a message from {} to {}, brought by {sender} to {}",
                    message.from, message.to, self.id
                )));
            }
            match self.groups.get_mut(&group) {
                Some(open) => {
                    open.step(message)?;
                    self.dirty.insert(group);
                }
                None => unknown.push(group),
            }
        }
        Ok(unknown)
    }

    /// Takes a snapshot message whose data was pulled from the sender.
    pub fn step_snapshot(
        &mut self,
        group: u64,
        message: &[u8],
        data: Vec<u8>,
    ) -> Result<(), RaftError> {
        let mut message = Message::parse_from_bytes(message).map_err(RaftError::codec)?;
        if message.to != self.id {
            return Err(RaftError::Malformed(format!("a snapshot for {}", message.to)));
        }
        message.mut_snapshot().data = data.into();
        self.group(group)?.step(message)
    }

    /// Proposes all of `entries` (a token each, to know them by when they are committed) in one
    /// message. False: not the leader, or too much is uncommitted; none of them was taken.
    pub fn propose(&mut self, group: u64, entries: Vec<(u64, Vec<u8>)>) -> Result<bool, RaftError> {
        Ok(self.group(group)?.propose(entries))
    }

    pub fn propose_configuration(
        &mut self,
        group: u64,
        change: &Configuration,
    ) -> Result<bool, RaftError> {
        let change: ConfChangeV2 = change.into();
        Ok(self.group(group)?.propose_configuration(change))
    }

    /// Asks for an index from which a read is linearizable; answered in a later turn.
    pub fn read_index(&mut self, group: u64, token: u64) -> Result<(), RaftError> {
        self.group(group)?.read_index(token);
        Ok(())
    }

    pub fn transfer_leadership(&mut self, group: u64, to: u64) -> Result<(), RaftError> {
        self.group(group)?.transfer_leadership(to);
        Ok(())
    }

    pub fn campaign(&mut self, group: u64) -> Result<(), RaftError> {
        self.group(group)?.campaign();
        Ok(())
    }

    /// Asks the leader for its whole state: ours went astray.
    pub fn request_snapshot(&mut self, group: u64) -> Result<(), RaftError> {
        self.group(group)?.request_snapshot()
    }

    pub fn report_unreachable(&mut self, peer: u64) {
        for (id, group) in &mut self.groups {
            if group.report_unreachable(peer) {
                self.dirty.insert(*id);
            }
        }
    }

    pub fn report_snapshot(&mut self, group: u64, peer: u64, arrived: bool) {
        // A group closed meanwhile has nothing to be told.
        if let Ok(open) = self.group(group) {
            open.report_snapshot(peer, arrived);
        }
    }

    /// The host's state machine at `index`. Returns the image to store and the first entry
    /// the store has to keep.
    pub fn compact(
        &mut self,
        group: u64,
        index: u64,
        data: Vec<u8>,
        trailing: u64,
    ) -> Result<(SnapshotImage, u64), RaftError> {
        self.group(group)?.compact(index, data, trailing)
    }

    /// The data of the snapshot at hand, for a peer that was offered it.
    pub fn snapshot_data(&self, group: u64, index: u64) -> Option<&[u8]> {
        self.groups.get(&group)?.snapshot_data(index)
    }

    pub fn standing(&self, group: u64) -> Result<Standing, RaftError> {
        Ok(self.groups.get(&group).ok_or(RaftError::UnknownGroup(group))?.standing())
    }

    /// How far the leader knows each node's log to reach, and whether it was heard lately;
    /// empty on followers.
    pub fn progress(&self, group: u64) -> Result<Vec<(u64, u64, bool)>, RaftError> {
        Ok(self.groups.get(&group).ok_or(RaftError::UnknownGroup(group))?.progress())
    }

    pub fn seats(&self, group: u64) -> Result<Seats, RaftError> {
        Ok(self.groups.get(&group).ok_or(RaftError::UnknownGroup(group))?.seats())
    }

    /// Ticks since a follower last heard of its leader.
    pub fn quiet_ticks(&self, group: u64) -> Result<usize, RaftError> {
        Ok(self.groups.get(&group).ok_or(RaftError::UnknownGroup(group))?.quiet_ticks())
    }

    pub fn log_size(&self, group: u64) -> Result<(usize, usize), RaftError> {
        Ok(self.groups.get(&group).ok_or(RaftError::UnknownGroup(group))?.log_size())
    }

    /// The batch of this number, and all before it, are on disk.
    pub fn persisted(&mut self, number: u64) {
        while self.outstanding.front().is_some_and(|batch| batch.number <= number) {
            let Some(batch) = self.outstanding.pop_front() else { break };
            for (id, ready) in batch.readies {
                if let Some(group) = self.groups.get_mut(&id) {
                    group.persisted(ready);
                    self.dirty.insert(id);
                }
            }
            self.released.extend(batch.held);
        }
    }

    pub fn turn(&mut self) -> Result<Turn, RaftError> {
        let mut turn = Turn::default();
        let mut out = std::mem::take(&mut self.released);
        let mut batch = Outstanding { number: self.next_batch, readies: vec![], held: vec![] };
        let mut writes = Vec::new();
        for id in std::mem::take(&mut self.dirty) {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let Some(mut done) = group.turn()? else { continue };
            if group.has_more() {
                self.dirty.insert(id);
            }
            out.extend(done.messages.into_iter().map(|message| (id, message)));
            let held = done.held.into_iter().map(|message| (id, message));
            if let Some(write) = done.write.take() {
                batch.readies.push((id, done.ready));
                batch.held.extend(held);
                group.written_with(batch.number, done.hard_changed);
                writes.push(write);
            } else if let Some(waits) = group
                .last_batch()
                .and_then(|number| self.outstanding.iter_mut().find(|batch| batch.number == number))
            {
                waits.readies.push((id, done.ready));
                waits.held.extend(held);
            } else {
                // Nothing to wait for: the disk has all of it.
                group.persisted(done.ready);
                out.extend(held);
                if group.has_more() {
                    self.dirty.insert(id);
                }
            }
            turn.committed.extend(done.committed);
            turn.restored.extend(done.restored.map(|image| (id, image)));
            turn.reads.extend(done.reads);
            turn.standings.extend(done.standing);
            if group.wants_snapshot() {
                turn.snapshots_wanted.push(id);
            }
        }
        if !writes.is_empty() {
            self.next_batch += 1;
            turn.write = Some(WriteBatch { number: batch.number, groups: writes });
            self.outstanding.push_back(batch);
        }
        for (group, mut message) in out {
            if message.has_snapshot() && !message.get_snapshot().is_empty() {
                let index = message.get_snapshot().get_metadata().index;
                message.mut_snapshot().data = Default::default();
                turn.snapshots.push(SnapshotOffer {
                    peer: message.to,
                    group,
                    index,
                    message: message.write_to_bytes().map_err(RaftError::codec)?,
                });
            } else {
                pack(turn.outbox.entry(message.to).or_default(), group, &message)?;
            }
        }
        turn.more = !self.dirty.is_empty();
        Ok(turn)
    }
}

/// Group (8 bytes), length (4 bytes), message; again and again.
fn pack(into: &mut Vec<u8>, group: u64, message: &Message) -> Result<(), RaftError> {
    into.extend_from_slice(&group.to_le_bytes());
    into.extend_from_slice(&message.compute_size().to_le_bytes());
    message.write_to_vec(into).map_err(RaftError::codec)
}

fn unpack<'a>(rest: &mut &'a [u8]) -> Result<(u64, &'a [u8]), RaftError> {
    let short = || RaftError::Malformed("a batch of messages ends early".to_owned());
    let (group, after) = rest.split_first_chunk::<8>().ok_or_else(short)?;
    let (length, after) = after.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize;
    let body = after.get(..length).ok_or_else(short)?;
    *rest = after.get(length..).ok_or_else(short)?;
    Ok((u64::from_le_bytes(*group), body))
}

#[cfg(test)]
mod tests;
