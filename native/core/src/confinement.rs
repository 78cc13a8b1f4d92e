//! Takes rights from this process and everything it starts: files, signals, capabilities.
//!
//! Landlock denies every file that is not below one of the given paths, attaching to processes
//! outside, and signals to them. It holds for the calling thread and what that starts, so it is
//! called before there are other threads.

use landlock::{
    path_beneath_rules, Access, AccessFs, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, ABI,
};
use rustix::thread::{
    remove_capability_from_bounding_set, set_capabilities, CapabilitySet, CapabilitySets,
};

/// The newest version of Landlock whose rights are asked for; an older kernel gives what it has.
const NEWEST: ABI = ABI::V6;

#[derive(Debug, thiserror::Error)]
pub enum ConfinementError {
    #[error("Landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    #[error("capabilities: {0}")]
    Capabilities(#[from] rustix::io::Errno),
}

/// How much of what was asked for the kernel enforces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Files, signals and abstract sockets.
    Full,
    /// Some of them: an older kernel.
    Partial,
    /// The kernel has no Landlock.
    None,
}

/// Leaves this process and its children the files below `read` and `write`, and signals among
/// themselves. Paths that do not exist are skipped.
pub fn confine(read: &[String], write: &[String]) -> Result<Enforcement, ConfinementError> {
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(read, AccessFs::from_read(NEWEST)))?
        .add_rules(path_beneath_rules(write, AccessFs::from_all(NEWEST)))?
        .restrict_self()?;
    Ok(match status.ruleset {
        RulesetStatus::FullyEnforced => Enforcement::Full,
        RulesetStatus::PartiallyEnforced => Enforcement::Partial,
        RulesetStatus::NotEnforced => Enforcement::None,
    })
}

/// Gives up every capability, also of programs that are started from here.
pub fn drop_capabilities() -> Result<(), ConfinementError> {
    rustix::thread::set_no_new_privs(true)?;
    for capability in CapabilitySet::all().iter() {
        // Not held in the first place, or not known to this kernel: it cannot be gained.
        let _ = remove_capability_from_bounding_set(capability);
    }
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, none)?;
    Ok(())
}
