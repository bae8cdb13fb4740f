//! Key → shard → owner: what lookups read. They neither wait nor allocate.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tenure_core::hash::{index_of, key_hash};
use tenure_core::ids::{Epoch, KeyspaceName, NodeName, SessionId, ShardId, ShardName};
use tenure_core::record::KeyspaceKind;
use tenure_core::router::RecordVersion;
use tenure_core::router::hold_queue::HoldQueue;

use super::append_only::{AppendOnlyList, NameIndex};
use super::atomic_entry::{AtomicEntry, OwnerSnapshot};

/// An incarnation of a node, and where to reach it.
#[derive(Debug)]
pub struct PeerNode {
    node: NodeName,
    session: SessionId,
    addresses: OnceLock<BTreeMap<String, String>>,
}

static NOWHERE: BTreeMap<String, String> = BTreeMap::new();

impl PeerNode {
    pub(super) fn new(node: NodeName, session: SessionId) -> Self {
        Self {
            node,
            session,
            addresses: OnceLock::new(),
        }
    }

    pub(super) fn is_at(&self, addresses: BTreeMap<String, String>) {
        // A session's addresses never change.
        let _ = self.addresses.set(addresses);
    }

    /// The node.
    pub fn node(&self) -> &NodeName {
        &self.node
    }

    /// Which incarnation of it.
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// Its addresses by kind.
    pub fn addresses(&self) -> &BTreeMap<String, String> {
        self.addresses.get().unwrap_or(&NOWHERE)
    }

    /// Its address of this kind.
    pub fn address(&self, kind: &str) -> Option<&str> {
        self.addresses().get(kind).map(String::as_str)
    }
}

/// Where a request goes. Its epoch goes with it, so that a node which owns the shard at another refuses it.
#[derive(Clone, Debug)]
pub struct Route {
    /// The shard.
    pub shard: ShardId,
    /// Who owns it.
    pub owner: Arc<PeerNode>,
    /// The epoch of the shard.
    pub epoch: Epoch,
    /// Which of the record's values this is from.
    pub rev: u64,
}

impl Route {
    pub(super) fn mark(&self) -> RecordVersion {
        RecordVersion {
            epoch: self.epoch,
            rev: self.rev,
        }
    }
}

/// What a lookup finds. Borrowed from the router: to look up costs no allocation.
#[derive(Clone, Copy, Debug)]
pub struct LookupResult<'a> {
    /// The shard.
    pub shard: &'a ShardId,
    /// Who owns it.
    pub owner: Option<&'a PeerNode>,
    /// Its epoch.
    pub epoch: Epoch,
    /// Which of the record's values this is from.
    pub rev: u64,
    /// Whether requests for it are held just now.
    pub held: bool,
}

/// What waits for a shard.
#[derive(Default)]
pub(super) struct ShardWaiters {
    pub(super) lines: HoldQueue<AtomicEntry>,
    /// Whoever stops waits for this one.
    pub(super) busy: bool,
}

/// What is there of a shard beside its slot.
pub(super) struct RoutedShardInfo {
    pub(super) id: ShardId,
    waiting: Mutex<ShardWaiters>,
}

impl RoutedShardInfo {
    fn new(id: ShardId) -> Self {
        Self {
            id,
            waiting: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ShardWaiters> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Shards {
    Hashed {
        slots: Box<[AtomicEntry]>,
        cold: Box<[RoutedShardInfo]>,
    },
    Named(Box<Named>),
}

#[derive(Default)]
struct Named {
    names: NameIndex,
    cells: AppendOnlyList<(AtomicEntry, RoutedShardInfo)>,
    count: AtomicUsize,
}

/// The shards of one keyspace.
pub(super) struct KeyspaceTable {
    pub(super) name: KeyspaceName,
    pub(super) kind: KeyspaceKind,
    shards: Shards,
    gone: AtomicBool,
}

impl KeyspaceTable {
    pub(super) fn new(name: KeyspaceName, kind: KeyspaceKind) -> Self {
        let cold = |i| RoutedShardInfo::new(ShardId::new(name.clone(), ShardName::index(i)));
        let shards = match kind {
            KeyspaceKind::Hashed(n) => Shards::Hashed {
                slots: (0..n).map(|_| AtomicEntry::default()).collect(),
                cold: (0..n).map(cold).collect(),
            },
            KeyspaceKind::Named => Shards::Named(Box::default()),
        };
        Self {
            name,
            kind,
            shards,
            gone: AtomicBool::new(false),
        }
    }

    /// The keyspace was removed, or replaced by one of another kind.
    pub(super) fn retire(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// How many shards are known.
    pub(super) fn len(&self) -> usize {
        match &self.shards {
            Shards::Hashed { slots, .. } => slots.len(),
            Shards::Named(named) => named.count.load(Ordering::Acquire),
        }
    }

    /// The place of the shard of a key with this hash.
    #[inline]
    pub(super) fn of_key(&self, key: &[u8], hash: u64) -> Option<usize> {
        match &self.shards {
            Shards::Hashed { slots, .. } => Some(index_of(hash, slots.len() as u32) as usize),
            Shards::Named(named) => named.names.find(std::str::from_utf8(key).ok()?),
        }
    }

    /// The place of a shard.
    pub(super) fn of_shard(&self, shard: &ShardName) -> Option<usize> {
        match &self.shards {
            Shards::Hashed { cold, .. } => {
                let at = shard.as_str().parse::<usize>().ok()?;
                cold.get(at).filter(|c| c.id.shard == *shard).map(|_| at)
            }
            Shards::Named(named) => named.names.find(shard.as_str()),
        }
    }

    /// The place of a shard, made if it is a new one.
    pub(super) fn place(&self, shard: &ShardName) -> Option<usize> {
        let known = self.of_shard(shard);
        let Shards::Named(named) = &self.shards else {
            return known;
        };
        known.or_else(|| {
            let at = named.count.load(Ordering::Acquire);
            let id = ShardId::new(self.name.clone(), shard.clone());
            named
                .cells
                .put(at, (AtomicEntry::default(), RoutedShardInfo::new(id)));
            named.names.add(shard.as_str(), at);
            named.count.store(at + 1, Ordering::Release);
            Some(at)
        })
    }

    /// The slot at a place.
    #[inline]
    pub(super) fn slot(&self, at: usize) -> Option<&AtomicEntry> {
        match &self.shards {
            Shards::Hashed { slots, .. } => slots.get(at),
            Shards::Named(named) => named.cells.get(at).map(|cell| &cell.0),
        }
    }

    /// The rest of a shard.
    #[inline]
    pub(super) fn cold(&self, at: usize) -> Option<&RoutedShardInfo> {
        match &self.shards {
            Shards::Hashed { cold, .. } => cold.get(at),
            Shards::Named(named) => named.cells.get(at).map(|cell| &cell.1),
        }
    }
}

/// One shard of a table: where a request is going.
#[derive(Clone, Copy)]
pub(super) struct ShardRef<'a> {
    pub(super) slot: &'a AtomicEntry,
    pub(super) cold: &'a RoutedShardInfo,
    /// Requests of one line keep their order: those of one key, or those that name no key.
    pub(super) line: u64,
}

struct Link {
    keyspace: Arc<KeyspaceTable>,
    next: OnceLock<Box<Link>>,
}

/// Everything that lookups read.
#[derive(Default)]
pub(super) struct LookupTable {
    first: OnceLock<Box<Link>>,
    /// Incarnations stay once they were met: a few hundred bytes for each start of a node.
    pub(super) peers: AppendOnlyList<Arc<PeerNode>>,
}

impl LookupTable {
    /// The keyspace of this name.
    #[inline]
    pub(super) fn keyspace(&self, name: &str) -> Option<&Arc<KeyspaceTable>> {
        // Few keyspaces: comparing their names costs less than a map.
        self.keyspaces()
            .find(|k| k.name.as_str() == name && !k.gone.load(Ordering::Acquire))
    }

    /// All keyspaces that ever were.
    pub(super) fn keyspaces(&self) -> impl Iterator<Item = &Arc<KeyspaceTable>> {
        let links = std::iter::successors(self.first.get(), |link| link.next.get());
        links.map(|link| &link.keyspace)
    }

    /// Adds a keyspace. There is one writer.
    pub(super) fn add(&self, keyspace: Arc<KeyspaceTable>) {
        let mut end = &self.first;
        while let Some(link) = end.get() {
            end = &link.next;
        }
        let next = OnceLock::new();
        let _ = end.set(Box::new(Link { keyspace, next }));
    }

    /// The shard of a key.
    #[inline]
    pub(super) fn of_key<'a>(keyspace: &'a KeyspaceTable, key: &[u8]) -> Option<ShardRef<'a>> {
        let line = key_hash(key);
        spot(keyspace, keyspace.of_key(key, line)?, line)
    }

    /// A shard that a request names itself.
    pub(super) fn of_shard<'a>(
        keyspace: &'a KeyspaceTable,
        shard: &ShardName,
    ) -> Option<ShardRef<'a>> {
        spot(keyspace, keyspace.of_shard(shard)?, 0)
    }

    /// What is known of a shard.
    #[inline]
    pub(super) fn found<'a>(&'a self, spot: ShardRef<'a>) -> LookupResult<'a> {
        let entry = spot.slot.read();
        let owner = entry.peer.filter(|_| !entry.free);
        LookupResult {
            shard: &spot.cold.id,
            owner: owner.and_then(|at| self.peers.get(at)).map(|peer| &**peer),
            epoch: entry.mark.epoch,
            rev: entry.mark.rev,
            held: spot.slot.is_held(),
        }
    }

    /// Where a request for the shard goes: to its owner, or to its last one, which will say so.
    pub(super) fn route(&self, spot: ShardRef<'_>) -> Option<Route> {
        let OwnerSnapshot { peer, mark, .. } = spot.slot.read();
        Some(Route {
            shard: spot.cold.id.clone(),
            owner: self.peers.get(peer?)?.clone(),
            epoch: mark.epoch,
            rev: mark.rev,
        })
    }
}

#[inline]
fn spot(keyspace: &KeyspaceTable, at: usize, line: u64) -> Option<ShardRef<'_>> {
    Some(ShardRef {
        slot: keyspace.slot(at)?,
        cold: keyspace.cold(at)?,
        line,
    })
}
