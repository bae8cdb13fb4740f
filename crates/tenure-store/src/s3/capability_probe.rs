//! Racing writers at the start: a service that ignores conditions, or loses them when writers race, is not used.
//!
//! Such services answer every conditional write with success. Two owners of one shard would be the least that follows, and nothing
//! would show it. So every open races writers on objects of its own, a bounded number of times, and counts winners.

use std::sync::Arc;

use futures_util::future::join_all;

use super::S3Store;
use super::requests::{PageStart, WriteCondition, WriteOutcome};
use crate::error::StoreError;
use crate::machine_identity::random_uuid;

/// How often writers are raced, for creates and for updates each.
const ROUNDS: usize = 3;
/// How many race.
const RACERS: usize = 12;
/// How often a round is repeated that nobody won: the service was busy.
const REPEATS: usize = 4;

impl S3Store {
    /// Races writers, and finds out how this service is spoken to. Leaves nothing behind.
    pub(super) async fn probe(&self) -> Result<(), StoreError> {
        let place = self.names.own(&format!("probe/{}", random_uuid()));
        let mut objects = Vec::new();
        let result = async {
            let removes_on_condition = self.rounds(&place, &mut objects).await?;
            Ok((
                removes_on_condition,
                self.is_ordered(&place, &mut objects).await?,
            ))
        };
        let result = result.await;
        let removals = objects
            .iter()
            .map(|object| self.client.remove(object, None));
        let removed = join_all(removals).await;
        let (removes_on_condition, ordered) = result?;
        for removed in removed {
            removed?;
        }
        self.client
            .site
            .manners
            .found(removes_on_condition, ordered);
        Ok(())
    }

    async fn rounds(&self, place: &str, objects: &mut Vec<String>) -> Result<bool, StoreError> {
        let mut last = None;
        for round in 0..ROUNDS {
            let object = format!("{}-{round}.json", place.trim_end_matches(".json"));
            objects.push(object.clone());
            let first = self.race(&object, &WriteCondition::Absent).await?;
            if round == 0 {
                self.nothing_is_made_by_an_update(place, objects, &first)
                    .await?;
                let second = self.matches(&object, &first).await?;
                self.stale(&object, &first).await?;
                last = Some((
                    object.clone(),
                    self.race(&object, &WriteCondition::Etag(second)).await?,
                ));
            } else {
                let won = self
                    .race(&object, &WriteCondition::Etag(first.clone()))
                    .await?;
                self.stale(&object, &first).await?;
                last = Some((object, won));
            }
        }
        match last {
            Some((object, etag)) => self.removes_on_condition(&object, &etag).await,
            None => Ok(false),
        }
    }

    /// Lets writers race under one condition; gives the ETag of the one who won.
    async fn race(&self, object: &str, condition: &WriteCondition) -> Result<Arc<str>, StoreError> {
        for _ in 0..REPEATS {
            let bodies: Vec<Vec<u8>> = (0..RACERS)
                .map(|n| self.nonces.value(n.to_string().as_bytes()))
                .collect();
            let writes = bodies
                .iter()
                .map(|body| self.client.write(object, body.clone(), condition));
            let mut winners = Vec::new();
            let mut doubt = None;
            for (n, answer) in join_all(writes).await.into_iter().enumerate() {
                match answer {
                    Ok(WriteOutcome::Won(etag)) => winners.push((n, etag)),
                    Ok(WriteOutcome::Refused) => {}
                    Ok(WriteOutcome::Conflict) => {
                        doubt = Some(StoreError::unavailable(
                            "the service asked writers to retry",
                        ))
                    }
                    Err(e @ (StoreError::Unavailable { .. } | StoreError::Unknown { .. })) => {
                        doubt = Some(e)
                    }
                    Err(e) => return Err(e),
                }
            }
            let stands = self.client.read(object).await?;
            match (&winners[..], stands) {
                ([(n, etag)], Some(read)) if read.raw == bodies[*n] && read.etag == *etag => {
                    return Ok(etag.clone());
                }
                // Who got no answer may have won.
                ([], Some(read)) if doubt.is_some() && bodies.contains(&read.raw) => {
                    return Ok(read.etag);
                }
                ([], _) if doubt.is_some() => {}
                ([], _) => {
                    return Err(self.unfit(&format!(
                        "of {RACERS} concurrent writers with {} none succeeded",
                        said(condition)
                    )));
                }
                ([_], _) if doubt.is_none() => {
                    return Err(self.unfit(&format!(
                        "the value of the one successful writer with {} is not stored",
                        said(condition)
                    )));
                }
                ([_], _) => {
                    return Err(self.unfit(&format!(
                        "another writer succeeded after the first one with {}",
                        said(condition)
                    )));
                }
                (several, _) => {
                    let count = several.len();
                    return Err(self.unfit(&format!(
                        "of {RACERS} concurrent writers with {} {count} succeeded instead of one",
                        said(condition)
                    )));
                }
            }
        }
        Err(StoreError::unavailable(format!(
            "S3 service {} is too busy to test its conditional writes; retry",
            self.client.site.settings.host
        )))
    }

    /// Finds out whether ETags match with their quotes or without.
    async fn matches(&self, object: &str, etag: &Arc<str>) -> Result<Arc<str>, StoreError> {
        let manners = &self.client.site.manners;
        for quoted in [true, false] {
            manners.set_quoted(quoted);
            let body = self.nonces.value(b"\"matches\"");
            let condition = WriteCondition::Etag(etag.clone());
            match self.client.write(object, body.clone(), &condition).await? {
                WriteOutcome::Won(etag) => return Ok(etag),
                WriteOutcome::Conflict => return self.settle(object, &body).await,
                WriteOutcome::Refused => {}
            }
        }
        Err(self.unfit("If-Match with the ETag of the object is rejected"))
    }

    /// An ETag of the past must not match.
    async fn stale(&self, object: &str, etag: &Arc<str>) -> Result<(), StoreError> {
        let body = self.nonces.value(b"\"stale\"");
        match self
            .client
            .write(object, body, &WriteCondition::Etag(etag.clone()))
            .await?
        {
            WriteOutcome::Won(_) => {
                Err(self.unfit("If-Match with the ETag of an older version is not rejected"))
            }
            WriteOutcome::Refused | WriteOutcome::Conflict => Ok(()),
        }
    }

    /// `If-Match` on an object that is not there must make none.
    async fn nothing_is_made_by_an_update(
        &self,
        place: &str,
        objects: &mut Vec<String>,
        etag: &Arc<str>,
    ) -> Result<(), StoreError> {
        objects.push(place.to_owned());
        let body = self.nonces.value(b"\"absent\"");
        match self
            .client
            .write(place, body, &WriteCondition::Etag(etag.clone()))
            .await?
        {
            WriteOutcome::Won(_) => {
                Err(self.unfit("If-Match creates an object that does not exist"))
            }
            WriteOutcome::Refused | WriteOutcome::Conflict => Ok(()),
        }
    }

    /// Whether a removal with the wrong ETag removes nothing.
    async fn removes_on_condition(
        &self,
        object: &str,
        etag: &Arc<str>,
    ) -> Result<bool, StoreError> {
        let wrong: Arc<str> = etag.chars().rev().collect::<String>().into();
        let removal = self
            .client
            .remove(object, Some(&WriteCondition::Etag(wrong)))
            .await;
        match removal {
            Ok(true) => Ok(false),
            Ok(false) => Ok(self.client.read(object).await?.is_some()),
            // Some refuse conditions that they do not know.
            Err(StoreError::Denied { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Whether what only begins like a folder is listed before what is in it.
    async fn is_ordered(&self, place: &str, objects: &mut Vec<String>) -> Result<bool, StoreError> {
        let folder = place.trim_end_matches(".json").to_owned();
        let both = ["!.json", "/a!.json"].map(|ending| format!("{folder}{ending}"));
        for object in &both {
            objects.push(object.clone());
            let body = self.nonces.value(b"\"order\"");
            self.client
                .write(object, body, &WriteCondition::Absent)
                .await?;
        }
        let page = self
            .client
            .page(&folder, &PageStart::After(folder.clone()), 1000)
            .await?;
        let names = page.objects.into_iter().map(|object| object.key);
        let names: Vec<String> = names.filter(|name| both.contains(name)).collect();
        Ok(names == both)
    }

    fn unfit(&self, seen: &str) -> StoreError {
        let host = &self.client.site.settings.host;
        StoreError::denied(format!(
            "S3 service {host} cannot be used: {seen}; without reliable conditional writes two nodes could own one shard. \
             docs/stores/s3.md names services that work"
        ))
    }
}

fn said(condition: &WriteCondition) -> &'static str {
    match condition {
        WriteCondition::Absent => "If-None-Match: *",
        WriteCondition::Etag(_) => "If-Match",
    }
}
