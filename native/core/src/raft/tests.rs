//! Nodes in one process on a perfect network, with disks that take a write only when told.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use std::collections::BTreeMap;

use super::*;

/// Nodes on a perfect network with disks that take a write only when told.
struct Lab {
    nodes: BTreeMap<u64, MultiRaft>,
    inbox: Vec<(u64, u64, Vec<u8>)>,
    writes: BTreeMap<u64, Vec<WriteBatch>>,
    committed: BTreeMap<u64, Vec<(u64, u64, Vec<u8>)>>,
    leader: u64,
    trace: Vec<String>,
    ticks: u32,
    disks: BTreeMap<u64, GroupImage>,
}

impl Lab {
    fn new(ids: &[u64], seed: u64) -> Self {
        let mut lab = Self {
            nodes: BTreeMap::new(),
            inbox: Vec::new(),
            writes: BTreeMap::new(),
            committed: BTreeMap::new(),
            leader: 0,
            trace: Vec::new(),
            ticks: 0,
            disks: BTreeMap::new(),
        };
        for id in ids {
            let mut node = MultiRaft::new(*id, seed, Settings::default());
            let image = GroupImage::first(1, ids.to_vec(), b"born".to_vec()).unwrap();
            node.open(image.clone()).unwrap();
            lab.disks.insert(*id, image);
            lab.nodes.insert(*id, node);
        }
        lab
    }

    /// One turn of a node; its writes wait.
    fn turn(&mut self, id: u64) {
        let Some(node) = self.nodes.get_mut(&id) else { return };
        loop {
            let turn = node.turn().unwrap();
            for (peer, packed) in turn.outbox {
                self.trace.push(format!("{} {id}>{peer} {packed:?}", self.ticks));
                self.inbox.push((id, peer, packed));
            }
            for offer in turn.snapshots {
                let data = node.snapshot_data(offer.group, offer.index).unwrap().to_vec();
                self.inbox.push((offer.peer, 0, [offer.message, data].concat()));
            }
            self.writes.entry(id).or_default().extend(turn.write);
            for entry in turn.committed {
                let one = (entry.index, entry.token, entry.data);
                self.committed.entry(id).or_default().push(one);
            }
            for standing in turn.standings {
                if standing.role == Role::Leader {
                    self.leader = id;
                }
            }
            if !turn.more {
                return;
            }
        }
    }

    fn sync(&mut self, id: u64) {
        for write in self.writes.remove(&id).unwrap_or_default() {
            if let (Some(disk), Some(group)) = (self.disks.get_mut(&id), write.groups.first()) {
                disk.hard = group.hard;
                let first = group.entries.first().map_or(u64::MAX, |entry| entry.index);
                disk.entries.retain(|old| old.index < first);
                disk.entries.extend(group.entries.clone());
            }
            if let Some(node) = self.nodes.get_mut(&id) {
                node.persisted(write.number);
            }
        }
        self.turn(id);
    }

    fn deliver(&mut self) {
        for (from, to, packed) in std::mem::take(&mut self.inbox) {
            if let Some(node) = self.nodes.get_mut(&to) {
                node.step(from, &packed).unwrap();
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..20 {
            self.deliver();
            for id in self.nodes.keys().copied().collect::<Vec<_>>() {
                self.turn(id);
                self.sync(id);
            }
        }
    }

    fn elect(&mut self) -> u64 {
        for _ in 0..200 {
            self.ticks += 1;
            for node in self.nodes.values_mut() {
                node.tick();
            }
            self.settle();
            if self.leader != 0 {
                return self.leader;
            }
        }
        0
    }

    fn propose(&mut self, token: u64, data: &[u8]) -> bool {
        let leader = self.leader;
        self.nodes.get_mut(&leader).unwrap().propose(1, vec![(token, data.to_vec())]).unwrap()
    }
}

#[test]
fn what_is_proposed_is_committed_everywhere_in_the_same_order() {
    let mut lab = Lab::new(&[1, 2, 3], 7);
    let leader = lab.elect();
    assert_ne!(leader, 0);
    for token in 1..=50 {
        assert!(lab.propose(token, format!("entry {token}").as_bytes()));
    }
    lab.settle();
    for _ in 0..6 {
        for node in lab.nodes.values_mut() {
            node.tick();
        }
        lab.settle();
    }
    let logs: Vec<_> = lab.committed.values().collect();
    assert_eq!(logs[0], logs[1]);
    assert_eq!(logs[1], logs[2]);
    let tokens: Vec<u64> = logs[0].iter().map(|entry| entry.1).filter(|token| *token > 0).collect();
    assert_eq!(tokens, (1..=50).collect::<Vec<_>>());
}

#[test]
fn a_follower_vouches_for_nothing_its_disk_does_not_have() {
    let mut lab = Lab::new(&[1, 2, 3], 7);
    let leader = lab.elect();
    lab.propose(1, b"entry");
    lab.turn(leader);
    lab.sync(leader);
    let before = lab.committed.get(&leader).map_or(0, Vec::len);
    lab.deliver();
    for id in [1, 2, 3] {
        if id != leader {
            lab.turn(id); // the entry is in memory; its write is under way
        }
    }
    lab.deliver();
    lab.turn(leader);
    assert_eq!(lab.committed.get(&leader).map_or(0, Vec::len), before);
    let follower = [1, 2, 3].into_iter().find(|id| *id != leader).unwrap();
    lab.sync(follower);
    lab.deliver();
    lab.turn(leader);
    assert_eq!(lab.committed[&leader].len(), before + 1);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let mut lab = Lab::new(&[1, 2, 3, 4, 5], seed);
        lab.elect();
        lab.propose(1, b"entry");
        lab.settle();
        lab.trace
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn a_node_goes_on_from_what_was_on_its_disk() {
    let mut lab = Lab::new(&[1], 1);
    lab.elect();
    lab.propose(1, b"kept");
    lab.settle();
    let image = lab.disks[&1].clone();
    let mut again = Lab::new(&[], 1);
    let mut node = MultiRaft::new(1, 9, Settings::default());
    node.open(image).unwrap();
    again.nodes.insert(1, node);
    again.elect();
    assert!(again.committed[&1].iter().any(|entry| entry.2 == b"kept"));
}

#[test]
fn a_snapshot_is_taken_of_now_and_keeps_trailing_entries() {
    let mut lab = Lab::new(&[1], 1);
    lab.elect();
    for token in 1..=20 {
        lab.propose(token, b"x");
    }
    lab.settle();
    let node = lab.nodes.get_mut(&1).unwrap();
    let applied = node.standing(1).unwrap().applied;
    assert!(node.compact(1, applied - 1, vec![], 5).is_err());
    let (image, keep_from) = node.compact(1, applied, b"state".to_vec(), 5).unwrap();
    assert_eq!((image.index, keep_from), (applied, applied - 4));
    assert_eq!(node.snapshot_data(1, applied), Some(b"state".as_slice()));
    assert_eq!(node.log_size(1).unwrap().0, 5);
}

#[test]
fn what_is_no_message_is_refused() {
    let mut lab = Lab::new(&[1, 2, 3], 7);
    let node = lab.nodes.get_mut(&1).unwrap();
    assert!(node.step(2, b"short").is_err());
    assert!(node.step(2, &[0xFF; 64]).is_err());
    let mut forged = Vec::new();
    let message = Message { from: 3, to: 1, ..Message::default() };
    pack(&mut forged, 1, &message).unwrap();
    assert!(node.step(2, &forged).is_err(), "node 2 speaks for node 3");
    let mut elsewhere = Vec::new();
    let message = Message { from: 2, to: 1, ..Message::default() };
    pack(&mut elsewhere, 99, &message).unwrap();
    assert_eq!(node.step(2, &elsewhere).unwrap(), vec![99]);
}

#[test]
fn a_damaged_image_is_refused() {
    let entry = |index| LogEntry { index, term: 1, kind: 0, data: vec![] };
    let mut hole = GroupImage::first(1, vec![1], vec![]).unwrap();
    hole.entries = vec![entry(2), entry(4)];
    let mut beyond = GroupImage::first(1, vec![1], vec![]).unwrap();
    beyond.hard.commit = 9;
    let mut late = GroupImage::first(1, vec![1], vec![]).unwrap();
    late.entries = vec![entry(5)];
    for image in [hole, beyond, late] {
        let mut node = MultiRaft::new(1, 1, Settings::default());
        assert!(matches!(node.open(image), Err(RaftError::Corrupt(_))));
    }
}

#[test]
fn a_node_whose_disk_is_an_older_copy_is_refused() {
    let mut lab = Lab::new(&[1, 2, 3], 7);
    let leader = lab.elect();
    let follower = [1, 2, 3].into_iter().find(|id| *id != leader).unwrap();
    let copy = lab.disks[&follower].clone();
    for token in 1..=5 {
        lab.propose(token, b"acknowledged");
    }
    lab.settle();
    let mut node = MultiRaft::new(follower, 9, Settings::default());
    node.open(copy).unwrap();
    lab.nodes.remove(&follower);
    let mut refused = None;
    for _ in 0..20 {
        for each in lab.nodes.values_mut() {
            each.tick();
        }
        for id in [1, 2, 3] {
            lab.turn(id);
            lab.sync(id);
        }
        for (from, to, packed) in std::mem::take(&mut lab.inbox) {
            if to == follower && refused.is_none() {
                refused = node.step(from, &packed).err();
            }
        }
    }
    assert!(matches!(refused, Some(RaftError::Outdated { group: 1, .. })), "{refused:?}");
}
