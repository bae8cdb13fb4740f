//! The bare calls of a store, one at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tenure_core::ids::SessionId;
use tenure_core::keys::prefix;
use tenure_store::{DeleteIf, LeaseId, Leases, Put, PutIf, Store, StoreError, Version, Watch};

use super::Bed;
use crate::exit::Exit;
use crate::measure::ReportRow;
use crate::store_access::{random_id, within};

const AREA: &str = "direct calls";
/// How many keys a batch and a listing have.
const MANY: usize = 1000;
/// About as much as a shard's record.
const VALUE: usize = 300;
/// How long nothing is written before a watch is measured: stores whose writers announce hold watches back when one
/// announcement follows the other, and that is not what a change in a calm cluster meets.
pub(crate) const CALM: Duration = Duration::from_millis(150);
/// Outlives any run's use of it, and goes by itself.
const LEASE: Duration = Duration::from_secs(60);

pub(crate) async fn measure(bed: &Bed, repeat: u32) -> Result<Vec<ReportRow>, Exit> {
    let store = &*bed.store;
    let home = prefix(&bed.bare);
    let (mut create, mut update, mut get) = (vec![], vec![], vec![]);
    for n in 0..repeat {
        let key = format!("{home}one/{n}");
        let (took, put) = timed(store.put_if(PutIf::create(&key, value()))).await?;
        create.push(took);
        let change = PutIf::update(&key, value(), won(put?)?);
        let (took, put) = timed(store.put_if(change)).await?;
        update.push(took);
        won(put?)?;
        let (took, entry) = timed(store.get(&key)).await?;
        get.push(took);
        entry?;
    }
    let (mut put_many, mut list) = (vec![], vec![]);
    for n in 0..repeat {
        let under = format!("{home}many-{n}/");
        let puts = (0..MANY).map(|i| PutIf::create(format!("{under}{i:04}"), value()));
        let (took, answers) = timed(store.put_many(puts.collect())).await?;
        put_many.push(took);
        for answer in answers {
            won(answer?)?;
        }
        let (took, listing) = timed(store.list(&under)).await?;
        list.push(took);
        let entries = listing?.entries.into_iter();
        let deletes = entries.map(|e| DeleteIf::new(e.key, e.version)).collect();
        for answer in within("deleting records", store.delete_many(deletes)).await? {
            answer?;
        }
    }
    let mut watched = Watched::begin(bed).await?;
    let mut seen = vec![];
    for _ in 0..repeat {
        seen.push(watched.put_seen().await?.0);
    }
    let row = |case: &str, values| ReportRow::plain(AREA, case, "µs", values);
    let mut rows = vec![
        row("get", get),
        row("create", create),
        row("compare-and-swap", update),
        row("list of 1,000 keys", list),
        row("put_many of 1,000 keys", put_many),
        row("put → seen by a watch", seen),
    ];
    if let Some(leases) = store.leases() {
        let (mut grant, mut keep, mut ask) = (vec![], vec![], vec![]);
        for n in 0..repeat {
            let id = LeaseId::of(SessionId(random_id()));
            let (took, granted) = timed(leases.grant(id, bed.ttl)).await?;
            grant.push(took);
            granted?;
            let leased = Leased::attach(store, id, format!("{home}leased-{n}")).await?;
            keep.push(leased.keep_alive(leases).await?);
            let (took, alive) = timed(leases.is_alive(id)).await?;
            ask.push(took);
            alive?;
        }
        rows.push(row("lease: grant", grant));
        rows.push(row("lease: keep_alive", keep));
        rows.push(row("lease: is_alive", ask));
    }
    Ok(rows)
}

/// A value of no meaning.
fn value() -> Arc<[u8]> {
    vec![b'x'; VALUE].into()
}

/// How many microseconds a call took, and its answer.
pub(crate) async fn timed<T>(call: impl Future<Output = T>) -> Result<(f64, T), Exit> {
    let begun = Instant::now();
    let answer = within("measuring a request", call).await?;
    Ok((micros(begun.elapsed()), answer))
}

pub(crate) fn micros(took: Duration) -> f64 {
    took.as_secs_f64() * 1e6
}

/// The version that a write gave its key. Nobody else writes here.
pub(crate) fn won(put: Put) -> Result<Version, Exit> {
    match put {
        Put::Won(version) => Ok(version),
        Put::Lost => Err(Exit::failed(
            "the store rejected a write without a conflict; run `tenure store check`",
        )),
    }
}

/// A watch, and keys to be seen by it.
pub(crate) struct Watched {
    store: Arc<dyn Store>,
    under: String,
    watch: Watch,
    n: u32,
}

impl Watched {
    pub(crate) async fn begin(bed: &Bed) -> Result<Self, Exit> {
        let under = format!("{}watched-{:08x}/", prefix(&bed.bare), random_id() as u32);
        let from = within("listing records", bed.store.list(&under))
            .await??
            .revision;
        Ok(Self {
            store: bed.store.clone(),
            watch: within("starting a watch", bed.store.watch(&under, from)).await??,
            under,
            n: 0,
        })
    }

    /// Microseconds from before a write until the watch has it, then those of one compare-and-swap of the same key.
    pub(crate) async fn put_seen(&mut self) -> Result<(f64, f64), Exit> {
        self.n += 1;
        let key = format!("{}{}", self.under, self.n);
        let store = self.store.clone();
        tokio::time::sleep(CALM).await;
        let (seen, version) = timed(async {
            let version = won(store.put_if(PutIf::create(&key, value())).await?)?;
            loop {
                let batch = self.watch.next().await;
                let batch = batch.map_err(|end| Exit::failed(end.to_string()))?;
                if batch.changes.iter().any(|change| change.key() == key) {
                    return Ok::<_, Exit>(version);
                }
            }
        })
        .await?;
        let change = PutIf::update(&key, value(), version?);
        let (swapped, put) = timed(self.store.put_if(change)).await?;
        won(put?)?;
        Ok((seen, swapped))
    }
}

/// A lease with a key.
pub(crate) struct Leased {
    id: LeaseId,
    key: String,
}

impl Leased {
    /// A lease of its own.
    pub(crate) async fn grant(
        store: &dyn Store,
        leases: &dyn Leases,
        key: String,
    ) -> Result<Self, Exit> {
        let id = LeaseId::of(SessionId(random_id()));
        within("granting a lease", leases.grant(id, LEASE)).await??;
        Self::attach(store, id, key).await
    }

    async fn attach(store: &dyn Store, id: LeaseId, key: String) -> Result<Self, Exit> {
        let put = PutIf::create(&key, value()).under(Some(id));
        won(within("writing a record", store.put_if(put)).await??)?;
        Ok(Self { id, key })
    }

    /// Microseconds of one renewal.
    pub(crate) async fn keep_alive(&self, leases: &dyn Leases) -> Result<f64, Exit> {
        let (took, kept) = timed(leases.keep_alive(self.id, &self.key)).await?;
        kept.map(|_| took).map_err(|e: StoreError| e.into())
    }
}
