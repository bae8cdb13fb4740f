//! What `tenure store check` asks a bucket.

use std::time::{Duration, Instant};

use super::S3Store;
use super::xml;
use crate::error::StoreError;
use crate::store_check::Finding;

/// Reads that are timed.
const READS: u32 = 5;
/// A renewal at the default ttl may take this long.
const SLOW: Duration = Duration::from_millis(500);

pub(super) async fn examine(store: &S3Store) -> Result<Vec<Finding>, StoreError> {
    Ok(vec![
        service(store),
        conditions(store),
        latency(store).await?,
        clock(store),
        versioning(store).await,
        object_lock(store).await,
        lifecycle(store).await,
    ])
}

fn service(store: &S3Store) -> Finding {
    let settings = &store.client.site.settings;
    Finding::ok(
        "service",
        format!(
            "{} in region {}, bucket {}",
            settings.host, settings.region, settings.bucket
        ),
    )
}

fn conditions(store: &S3Store) -> Finding {
    let manners = &store.client.site.manners;
    let form = if manners.is_quoted() {
        "quoted"
    } else {
        "unquoted"
    };
    if !manners.was_raced() {
        return Finding::ok(
            "conditional writes",
            format!(
                "the service compares {form} ETags; this check did not test concurrent writers, but every node tests \
                 them at startup"
            ),
        );
    }
    let removal = match manners.removes_on_condition() {
        true => "deletions obey conditions: tombstones are removed after a minute",
        false => "deletions ignore conditions: tombstones are removed after a day",
    };
    Finding::ok(
        "conditional writes",
        format!(
            "exactly one of the concurrent writers succeeded; the service compares {form} ETags; {removal}"
        ),
    )
}

async fn latency(store: &S3Store) -> Result<Finding, StoreError> {
    let mut slowest = Duration::ZERO;
    for _ in 0..READS {
        let begun = Instant::now();
        store.ask_identity().await?;
        slowest = slowest.max(begun.elapsed());
    }
    let found = format!("slowest of {READS} reads {slowest:.1?}");
    Ok(match slowest > SLOW {
        true => Finding::warn(
            "latency",
            found,
            "use a bucket in the same region, or a longer ttl",
        ),
        false => Finding::ok("latency", found),
    })
}

fn clock(store: &S3Store) -> Finding {
    match store.client.site.clock.off() {
        None => Finding::ok(
            "signatures",
            "signed with this machine's time, which agrees with the service's",
        ),
        Some((off, ahead)) => {
            let way = if ahead { "ahead of" } else { "behind" };
            Finding::warn(
                "signatures",
                format!(
                    "this machine's clock is {off:.0?} {way} the service's, so requests are signed with the service's time"
                ),
                "set this machine's clock; ownership does not depend on it",
            )
        }
    }
}

/// What the bucket says of itself, or why it does not.
async fn asked(store: &S3Store, what: &'static str) -> Result<Option<String>, String> {
    let answer = store.client.about_bucket(what).await;
    answer.map_err(|e| format!("cannot be read: {e}"))
}

async fn versioning(store: &S3Store) -> Finding {
    match asked(store, "versioning").await {
        Err(reason) => Finding::ok("versioning", reason),
        Ok(said) => match said
            .as_deref()
            .and_then(|said| xml::element(said, "Status"))
        {
            Some("Enabled") => Finding::warn(
                "versioning",
                "on: every renewal leaves an old version, which is billed",
                "use a bucket without versioning, or a lifecycle rule that removes noncurrent versions after a day",
            ),
            Some(status) => Finding::ok("versioning", status.to_lowercase()),
            None => Finding::ok("versioning", "off"),
        },
    }
}

async fn object_lock(store: &S3Store) -> Finding {
    match asked(store, "object-lock").await {
        Err(reason) => Finding::ok("object lock", reason),
        Ok(Some(said)) if said.contains("<Mode>") => Finding::warn(
            "object lock",
            "on with a default retention: objects cannot be removed",
            "use a bucket without object lock",
        ),
        Ok(_) => Finding::ok("object lock", "off, or without a default retention"),
    }
}

async fn lifecycle(store: &S3Store) -> Finding {
    match asked(store, "lifecycle").await {
        Err(reason) => Finding::ok("lifecycle", reason),
        Ok(Some(said)) if said.contains("<Expiration>") => Finding::fail(
            "lifecycle",
            "a rule removes objects after some time; if it matches the store's objects, records in use are deleted",
            "limit the rule to other prefixes, or use a bucket of its own",
        ),
        Ok(_) => Finding::ok("lifecycle", "no rule removes present versions"),
    }
}
