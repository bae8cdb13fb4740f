//! The checks that every store must pass. Public, so that a store of one's own can be held to them.
//!
//! Each check is a function of its own; [`conformance_suite!`](crate::conformance_suite) makes a test of each:
//!
//! ```text
//! mod mine {
//!     tenure_store::conformance_suite!(MySubject::fresh());
//! }
//! ```

pub mod batches;
pub mod key_lifecycle;
pub mod keys;
pub mod leases;
pub mod races;
pub mod watches;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::JoinSet;

use crate::store::{Put, PutIf, Store};
use crate::watch::{Change, Watch};
use crate::{Revision, Version};

/// How long a check waits for what should come within milliseconds.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A store under test: fresh, and used by nobody else meanwhile.
#[async_trait]
pub trait StoreUnderTest: Send + Sync {
    /// Opens the store anew: the same contents each time, over a connection of its own.
    async fn open(&self) -> Arc<dyn Store>;
}

/// Makes one `#[tokio::test]` of every check. Takes an expression that gives a new [`StoreUnderTest`](crate::conformance::StoreUnderTest) each time.
#[macro_export]
macro_rules! conformance_suite {
    ($subject:expr) => {
        $crate::conformance_suite!(@list tests ($subject));
    };
    (@list $what:ident ($arg:expr)) => {
        $crate::conformance_suite!(@$what ($arg)
            races: [
                racing_creates_have_one_winner,
                racing_updates_have_one_winner,
                racing_increments_lose_none,
                racing_deletes_have_one_winner,
            ]
            key_lifecycle: [
                a_value_is_read_back_by_every_connection,
                a_create_of_an_existing_key_loses,
                an_update_at_an_old_version_loses,
                an_update_of_an_absent_key_loses,
                a_delete_at_an_old_version_loses,
                delete_and_recreate_never_reuse_a_version,
                the_revision_moves_on_writes_and_not_on_reads,
                the_identity_survives_reopening,
                the_facts_about_the_store_make_sense,
                a_dropped_call_does_not_wedge_the_store,
                a_dedicated_connection_sees_the_same_store,
            ]
            keys: [
                odd_keys_are_kept_apart,
                values_are_any_bytes_up_to_64_kib,
                a_list_is_exact_and_in_order,
                pages_of_keys_are_exact_and_in_order,
            ]
            batches: [
                a_batch_answers_each_key_by_itself,
                a_batch_takes_five_thousand_keys,
                an_empty_batch_is_answered,
                discarding_removes_keys_whatever_their_version,
            ]
            watches: [
                a_watch_sees_what_was_written_by_another_connection,
                a_watch_replays_from_an_old_revision,
                a_watch_shows_deletions,
                a_watch_sees_its_prefix_alone,
                nothing_is_lost_between_a_list_and_a_watch,
                a_cancelled_wait_loses_no_change,
                many_watches_see_the_same,
            ]
            leases: [
                a_lease_that_is_kept_alive_keeps_its_key,
                a_lease_that_is_not_kept_alive_takes_its_key_along,
                a_key_written_again_without_the_lease_stays,
                a_lease_that_is_over_is_gone,
                a_key_that_is_not_attached_is_loose,
                an_id_that_is_taken_is_refused,
            ]
        );
    };
    (@tests ($subject:expr) $($area:ident: [$($check:ident,)*])*) => {
        $($(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $check() {
                let subject = $subject;
                let check = $crate::conformance::$area::$check(&subject);
                $crate::conformance::in_time(check).await;
            }
        )*)*
    };
    (@in_turn ($run:expr) $($area:ident: [$($check:ident,)*])*) => {
        $($(
            let check = |subject: Box<dyn StoreUnderTest>| async move { $area::$check(&*subject).await };
            $run.check(stringify!($area), stringify!($check), check).await;
        )*)*
    };
}

/// Runs every check in turn, in one test: for stores behind a server that is too slow to start for each check.
///
/// `fresh` takes the name of a check and gives it a store of its own: nobody else writes below it, though there may be
/// others beside it on the server. Checks of leases mostly wait, and do so side by side.
pub async fn in_turn(fresh: impl AsyncFn(&'static str) -> Box<dyn StoreUnderTest>) {
    in_turn_but(&[], fresh).await;
}

/// The same without some checks, for servers that cannot pass them in a minute.
pub async fn in_turn_but(
    left_out: &'static [&'static str],
    fresh: impl AsyncFn(&'static str) -> Box<dyn StoreUnderTest>,
) {
    let mut run = InTurn {
        fresh,
        left_out,
        waiting: JoinSet::new(),
    };
    conformance_suite!(@list in_turn (run));
    while let Some(done) = run.waiting.join_next().await {
        done.expect("a check of leases passes");
    }
}

struct InTurn<F> {
    fresh: F,
    left_out: &'static [&'static str],
    waiting: JoinSet<()>,
}

impl<F: AsyncFn(&'static str) -> Box<dyn StoreUnderTest>> InTurn<F> {
    async fn check<C>(
        &mut self,
        area: &str,
        name: &'static str,
        check: impl FnOnce(Box<dyn StoreUnderTest>) -> C,
    ) where
        C: Future<Output = ()> + Send + 'static,
    {
        if self.left_out.contains(&name) {
            eprintln!("{area}: {name} is left out");
            return;
        }
        eprintln!("{area}: {name}");
        let check = in_time(check((self.fresh)(name).await));
        // This one sees every write on the server.
        let alone = name == "a_lease_that_is_kept_alive_keeps_its_key";
        if area == "leases" && !alone {
            self.waiting.spawn(check);
        } else {
            check.await;
        }
    }
}

/// Lets a check take a minute. A store that goes wrong should fail it, not stop it.
pub async fn in_time(check: impl Future<Output = ()>) {
    let minute = Duration::from_secs(60);
    let ended = tokio::time::timeout(minute, check).await;
    ended.expect("the check ends within a minute");
}

/// Writes a key that nobody else writes.
async fn create(store: &dyn Store, key: &str, value: &[u8]) -> Version {
    won(store.put_if(PutIf::create(key, value)).await.unwrap())
}

/// Overwrites a key that nobody else writes.
async fn update(store: &dyn Store, key: &str, value: &[u8], version: &Version) -> Version {
    let put = PutIf::update(key, value, version.clone());
    won(store.put_if(put).await.unwrap())
}

fn won(put: Put) -> Version {
    match put {
        Put::Won(version) => version,
        Put::Lost => panic!("lost a race against nobody"),
    }
}

/// Collects changes until `enough` of them say so.
async fn follow(watch: &mut Watch, enough: impl Fn(&[Change]) -> bool) -> (Vec<Change>, Revision) {
    let mut seen = Vec::new();
    let mut upto = Revision(0);
    while !enough(&seen) {
        let next = tokio::time::timeout(TIMEOUT, watch.next()).await;
        let Ok(next) = next else {
            panic!("nothing more after {seen:?}");
        };
        let batch = next.expect("the watch goes on");
        assert!(batch.upto >= upto, "a watch goes forward");
        upto = batch.upto;
        seen.extend(batch.changes);
    }
    (seen, upto)
}
