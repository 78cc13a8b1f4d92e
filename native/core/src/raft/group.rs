//! One group: the consensus core's `RawNode`, its log, and its own dice.

use ::raft::eraftpb::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Entry, EntryType, Message,
    MessageType,
};
use ::raft::{Config, RawNode, SnapshotStatus, StateRole};
use protobuf::Message as _;

use super::image::{GroupImage, GroupWrite, Hard, LogEntry, SnapshotImage};
use super::log::Log;
use super::{RaftError, Settings};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Follower,
    Candidate,
    Leader,
}

/// Where this node stands in a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    pub group: u64,
    pub term: u64,
    pub role: Role,
    /// 0: nobody known.
    pub leader: u64,
    pub commit: u64,
    pub applied: u64,
}

/// An entry whose place in history is final.
pub struct Committed {
    pub group: u64,
    pub index: u64,
    pub term: u64,
    /// What the proposer gave it; 0 for entries of others and of the core itself.
    pub token: u64,
    pub data: Vec<u8>,
    /// The entry changed who takes part: this from here on.
    pub seats: Option<Seats>,
}

/// Who takes part in a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seats {
    pub voters: Vec<u64>,
    /// Voters of the configuration being left, while two are in force.
    pub outgoing: Vec<u64>,
    pub learners: Vec<u64>,
}

impl From<&ConfState> for Seats {
    fn from(conf: &ConfState) -> Self {
        let sorted = |ids: &[u64]| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        };
        Self {
            voters: sorted(&conf.voters),
            outgoing: sorted(&conf.voters_outgoing),
            learners: sorted(&conf.learners),
        }
    }
}

/// The read of this token may be answered by a state machine that applied `index`.
pub struct Read {
    pub group: u64,
    pub token: u64,
    pub index: u64,
}

/// A change of who takes part, all of it in one step (joint when more than one).
#[derive(Default)]
pub struct Configuration {
    pub voters: Vec<u64>,
    pub learners: Vec<u64>,
    pub removed: Vec<u64>,
}

impl From<&Configuration> for ConfChangeV2 {
    fn from(change: &Configuration) -> Self {
        let single = |node: &u64, change_type| ConfChangeSingle {
            node_id: *node,
            change_type,
            ..ConfChangeSingle::default()
        };
        let mut all = Self::default();
        let changes = change
            .voters
            .iter()
            .map(|node| single(node, ConfChangeType::AddNode))
            .chain(change.learners.iter().map(|n| single(n, ConfChangeType::AddLearnerNode)))
            .chain(change.removed.iter().map(|n| single(n, ConfChangeType::RemoveNode)));
        all.set_changes(changes.collect::<Vec<_>>().into());
        all
    }
}

/// What one `Ready` of the core asks for.
pub struct Done {
    pub ready: u64,
    pub messages: Vec<Message>,
    pub held: Vec<Message>,
    pub write: Option<GroupWrite>,
    /// The write holds a new term or vote.
    pub hard_changed: bool,
    pub committed: Vec<Committed>,
    pub restored: Option<SnapshotImage>,
    pub reads: Vec<Read>,
    pub standing: Option<Standing>,
}

pub struct Group {
    id: u64,
    node: RawNode<Log>,
    dice: Dice,
    election_ticks: usize,
    /// Term, role and timeout after the last throw: any other value means the core began anew.
    thrown: (u64, StateRole, usize),
    shown: Option<(u64, Role, u64)>,
    last_batch: Option<(u64, u64)>,
    last_hard_batch: Option<u64>,
    ready_persisted: u64,
    last_ready: u64,
    /// The ready that brought a snapshot which is not on disk yet.
    restored_by: Option<u64>,
}

impl Group {
    pub fn new(
        node: u64,
        seed: u64,
        settings: &Settings,
        image: GroupImage,
    ) -> Result<Self, RaftError> {
        let id = image.group;
        let applied = image.snapshot.index;
        let log = Log::new(image)?;
        let config = Config {
            id: node,
            election_tick: settings.election_ticks,
            heartbeat_tick: settings.heartbeat_ticks,
            applied,
            max_size_per_msg: settings.message_bytes_max,
            max_inflight_msgs: settings.inflight_messages_max,
            max_uncommitted_size: settings.uncommitted_bytes_max,
            max_committed_size_per_ready: settings.committed_bytes_per_turn,
            check_quorum: true,
            pre_vote: true,
            ..Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node_core = RawNode::new(&config, log, &logger)
            .map_err(|error| RaftError::Corrupt(error.to_string()))?;
        let mut group = Self {
            id,
            node: node_core,
            dice: Dice::new(seed ^ node.rotate_left(32) ^ id.rotate_left(17)),
            election_ticks: settings.election_ticks,
            thrown: (0, StateRole::Follower, 0),
            shown: None,
            last_batch: None,
            last_hard_batch: None,
            ready_persisted: 0,
            last_ready: 0,
            restored_by: None,
        };
        group.throw();
        Ok(group)
    }

    /// The core draws its election timeout from a generator nobody can seed: whenever it did,
    /// ours replaces it.
    fn throw(&mut self) {
        let raft = &mut self.node.raft;
        let now = (raft.term, raft.state, raft.randomized_election_timeout());
        if now == self.thrown {
            return;
        }
        let timeout = self.election_ticks + self.dice.below(self.election_ticks);
        raft.set_randomized_election_timeout(timeout);
        self.thrown = (raft.term, raft.state, timeout);
    }

    pub fn tick(&mut self) -> bool {
        let has_ready = self.node.tick();
        self.throw();
        has_ready
    }

    pub fn step(&mut self, message: Message) -> Result<(), RaftError> {
        if self.node.store().is_blank() && is_for_members(&message) {
            return Ok(());
        }
        self.check_acknowledged(&message)?;
        // Refused messages (from a node removed meanwhile, of an older term) are the protocol's
        // own business; the sender learns by what it does not get.
        drop(self.node.step(message));
        self.throw();
        Ok(())
    }

    /// A heartbeat names the entries that its receiver has acknowledged to this leader. If the log
    /// ends before them, the disk has forgotten what it was trusted with, votes perhaps too.
    fn check_acknowledged(&self, message: &Message) -> Result<(), RaftError> {
        let raft = &self.node.raft;
        let is_heartbeat = message.get_msg_type() == MessageType::MsgHeartbeat;
        let last = raft.raft_log.last_index();
        if is_heartbeat && message.term >= raft.term && message.commit > last {
            let acknowledged = message.commit;
            return Err(RaftError::Outdated { group: self.id, last, acknowledged });
        }
        Ok(())
    }

    pub fn propose(&mut self, entries: Vec<(u64, Vec<u8>)>) -> bool {
        let mut message = Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.node.raft.id;
        message.set_entries(
            entries
                .into_iter()
                .map(|(token, data)| Entry {
                    data: data.into(),
                    context: token.to_le_bytes().to_vec().into(),
                    ..Entry::default()
                })
                .collect::<Vec<_>>()
                .into(),
        );
        self.node.raft.state == StateRole::Leader && self.node.step(message).is_ok()
    }

    pub fn propose_configuration(&mut self, change: ConfChangeV2) -> bool {
        self.node.raft.state == StateRole::Leader
            && !self.node.raft.has_pending_conf()
            && self.node.propose_conf_change(vec![], change).is_ok()
    }

    pub fn read_index(&mut self, token: u64) {
        self.node.read_index(token.to_le_bytes().to_vec());
    }

    pub fn transfer_leadership(&mut self, to: u64) {
        self.node.transfer_leader(to);
    }

    pub fn campaign(&mut self) {
        // Refused when this node may not lead (a learner): then nothing changes.
        drop(self.node.campaign());
        self.throw();
    }

    pub fn request_snapshot(&mut self) -> Result<(), RaftError> {
        self.node.request_snapshot().map_err(|error| RaftError::Refused(error.to_string()))
    }

    pub fn report_unreachable(&mut self, peer: u64) -> bool {
        let is_leader = self.node.raft.state == StateRole::Leader;
        if is_leader {
            self.node.report_unreachable(peer);
        }
        is_leader
    }

    pub fn report_snapshot(&mut self, peer: u64, arrived: bool) {
        let status = if arrived { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        self.node.report_snapshot(peer, status);
    }

    pub fn persisted(&mut self, ready: u64) {
        if ready > self.ready_persisted {
            self.ready_persisted = ready;
            self.node.on_persist_ready(ready);
        }
        if self.restored_by.is_some_and(|restored| restored <= ready) {
            self.restored_by = None;
            self.node.advance_apply();
        }
        if self.last_batch.is_some_and(|(_, last)| last <= ready) {
            self.last_batch = None;
            self.last_hard_batch = None;
        }
    }

    pub fn written_with(&mut self, batch: u64, hard_changed: bool) {
        self.last_batch = Some((batch, self.last_ready));
        if hard_changed {
            self.last_hard_batch = Some(batch);
        }
    }

    pub fn last_batch(&self) -> Option<u64> {
        self.last_batch.map(|(batch, _)| batch)
    }

    pub fn has_more(&self) -> bool {
        self.node.has_ready()
    }

    pub fn wants_snapshot(&self) -> bool {
        self.node.store().take_wanted()
    }

    pub fn turn(&mut self) -> Result<Option<Done>, RaftError> {
        if !self.node.has_ready() {
            return Ok(None);
        }
        let mut ready = self.node.ready();
        self.last_ready = ready.number();
        let mut done = Done {
            ready: ready.number(),
            messages: ready.take_messages(),
            held: ready.take_persisted_messages(),
            write: None,
            hard_changed: false,
            committed: Vec::new(),
            restored: None,
            reads: Vec::new(),
            standing: None,
        };
        if let Some(hard) = ready.hs() {
            let before = self.node.store().hard();
            done.hard_changed = (before.term, before.vote) != (hard.term, hard.vote);
            let hard = hard.clone();
            self.node.mut_store().set_hard(&hard);
        }
        if !ready.snapshot().is_empty() {
            let snapshot = ready.snapshot().clone();
            done.restored = Some(SnapshotImage::of(&snapshot)?);
            self.node.mut_store().install(snapshot);
        }
        let entries = ready.take_entries();
        self.node.mut_store().append(&entries);
        if done.hard_changed || done.restored.is_some() || !entries.is_empty() {
            // The commit index goes with every write though it needs none of its own: a node
            // that restarts must know at least the voters it had when it last promised anything.
            done.write = Some(GroupWrite {
                group: self.id,
                hard: Hard::from(self.node.store().hard()),
                entries: entries.iter().map(LogEntry::from).collect(),
                snapshot: done.restored.clone(),
            });
        } else if self.last_hard_batch.is_none() {
            // A heartbeat's answer vouches for the term alone, and the disk has that.
            let is_alive = |m: &Message| m.get_msg_type() == MessageType::MsgHeartbeatResponse;
            let (now, later) = std::mem::take(&mut done.held).into_iter().partition(is_alive);
            done.messages.extend::<Vec<_>>(now);
            done.held = later;
        }
        for state in ready.take_read_states() {
            if let Some(token) = token_of(&state.request_ctx) {
                done.reads.push(Read { group: self.id, token, index: state.index });
            }
        }
        for entry in ready.take_committed_entries() {
            done.committed.push(self.commit(entry)?);
        }
        self.node.advance_append_async(ready);
        if done.restored.is_some() {
            // Counts as applied only once the disk has it.
            self.restored_by = Some(done.ready);
        } else if self.restored_by.is_none() {
            self.node.advance_apply();
        }
        self.step_down_if_removed();
        self.throw();
        let standing = self.standing();
        let shown = Some((standing.term, standing.role, standing.leader));
        if shown != self.shown {
            self.shown = shown;
            done.standing = Some(standing);
        }
        Ok(Some(done))
    }

    /// A leader whose removal is committed has nothing more to lead, and the core would look in
    /// vain for its progress.
    fn step_down_if_removed(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader && raft.prs().get(raft.id).is_none() {
            raft.become_follower(raft.term, 0);
        }
    }

    fn commit(&mut self, entry: Entry) -> Result<Committed, RaftError> {
        let change = match entry.get_entry_type() {
            EntryType::EntryNormal => None,
            EntryType::EntryConfChangeV2 => {
                Some(ConfChangeV2::parse_from_bytes(&entry.data).map_err(RaftError::codec)?)
            }
            EntryType::EntryConfChange => {
                return Err(RaftError::Corrupt("an entry of a kind never proposed".to_owned()))
            }
        };
        let seats = match &change {
            None => None,
            Some(change) => {
                let conf = self
                    .node
                    .apply_conf_change(change)
                    .map_err(|error| RaftError::Refused(error.to_string()))?;
                Some(Seats::from(&conf))
            }
        };
        Ok(Committed {
            group: self.id,
            index: entry.index,
            term: entry.term,
            token: token_of(&entry.context).unwrap_or(0),
            data: if change.is_some() { Vec::new() } else { entry.data.to_vec() },
            seats,
        })
    }

    pub fn compact(
        &mut self,
        index: u64,
        data: Vec<u8>,
        trailing: u64,
    ) -> Result<(SnapshotImage, u64), RaftError> {
        let raft_log = &self.node.raft.raft_log;
        // The voters of now go with it, so it must be the state of now.
        if index != raft_log.applied {
            return Err(RaftError::Refused(format!(
                "a snapshot at {index}, but {} is applied",
                raft_log.applied
            )));
        }
        let term = raft_log.term(index).map_err(|error| RaftError::Refused(error.to_string()))?;
        let conf = self.node.raft.prs().conf().to_conf_state();
        let image = SnapshotImage {
            index,
            term,
            conf: conf.write_to_bytes().map_err(RaftError::codec)?,
            data,
        };
        let snapshot = image.to_snapshot()?;
        self.node.mut_store().compact(snapshot, trailing);
        Ok((image, self.node.store().first_kept()))
    }

    pub fn snapshot_data(&self, index: u64) -> Option<&[u8]> {
        self.node.store().snapshot_data(index)
    }

    pub fn standing(&self) -> Standing {
        let raft = &self.node.raft;
        Standing {
            group: self.id,
            term: raft.term,
            role: match raft.state {
                StateRole::Leader => Role::Leader,
                StateRole::Follower => Role::Follower,
                StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
            },
            leader: raft.leader_id,
            commit: raft.raft_log.committed,
            applied: raft.raft_log.applied,
        }
    }

    pub fn progress(&self) -> Vec<(u64, u64, bool)> {
        if self.node.raft.state != StateRole::Leader {
            return Vec::new();
        }
        let mut all: Vec<_> = self
            .node
            .raft
            .prs()
            .iter()
            .map(|(id, progress)| (*id, progress.matched, progress.recent_active))
            .collect();
        all.sort_unstable();
        all
    }

    pub fn seats(&self) -> Seats {
        Seats::from(&self.node.raft.prs().conf().to_conf_state())
    }

    pub fn quiet_ticks(&self) -> usize {
        self.node.raft.election_elapsed
    }

    pub fn log_size(&self) -> (usize, usize) {
        self.node.store().size()
    }
}

/// What a node that knows nothing of a group leaves alone. It may have left the group and come
/// back: then it has forgotten what it vouched for, and with its vote a candidate could win that
/// lacks what was committed; and a heartbeat from before may speak of entries it had then.
fn is_for_members(message: &Message) -> bool {
    match message.get_msg_type() {
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => true,
        MessageType::MsgHeartbeat => message.commit > 0,
        _ => false,
    }
}

fn token_of(context: &[u8]) -> Option<u64> {
    context.try_into().ok().map(u64::from_le_bytes)
}

/// SplitMix64: small, seedable, good enough to keep candidates apart.
struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}
