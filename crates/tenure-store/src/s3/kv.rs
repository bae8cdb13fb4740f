//! Reading and writing single keys.

use std::sync::Arc;

use tenure_core::ids::Version;

use super::S3Store;
use super::object_format::ObjectBody;
use super::requests::{WriteCondition, WriteOutcome};
use crate::concurrent_batch::in_waves;
use crate::error::StoreError;
use crate::store::{Delete, DeleteIf, Entry, Expect, Put, PutIf, no_leases};

/// How often a create is tried again because the mark of a deletion came or went under it.
const CREATE_ATTEMPTS: usize = 8;
/// How many requests of a batch are under way at once, each on a connection of its own.
pub(super) const AT_ONCE: usize = 64;

impl S3Store {
    pub(super) async fn read_one(&self, key: &str) -> Result<Option<Entry>, StoreError> {
        let read = self.client.read(&self.names.object(key)?).await?;
        Ok(read.and_then(|read| match read.body {
            ObjectBody::Deleted => None,
            ObjectBody::Value(value) => Some(Entry {
                key: key.to_owned(),
                value,
                version: Version::Text(read.etag),
            }),
        }))
    }

    pub(super) async fn read_many(
        &self,
        keys: Vec<String>,
    ) -> Vec<Result<Option<Entry>, StoreError>> {
        let ask = |key: String| async move { self.read_one(&key).await };
        in_waves(AT_ONCE, keys, |key| key, ask).await
    }

    pub(super) async fn write_many(&self, puts: Vec<PutIf>) -> Vec<Result<Put, StoreError>> {
        in_waves(AT_ONCE, puts, |put| &put.key, |put| self.write_one(put)).await
    }

    pub(super) async fn remove_many(
        &self,
        deletes: Vec<DeleteIf>,
    ) -> Vec<Result<Delete, StoreError>> {
        let ask = |delete| self.remove_one(delete);
        in_waves(AT_ONCE, deletes, |delete| &delete.key, ask).await
    }

    pub(super) async fn write_one(&self, put: PutIf) -> Result<Put, StoreError> {
        if put.lease.is_some() {
            return Err(no_leases());
        }
        let object = self.names.object(&put.key)?;
        let trusted = self.trusted().await?;
        let body = self.nonces.value(&put.value);
        let etag = match put.expect {
            Expect::Absent => self.create(&object, &put.key, body).await?,
            Expect::Version(Version::Text(etag)) => self.swap(&object, body, etag).await?,
            Expect::Version(Version::Number(_)) => None,
        };
        Ok(match etag {
            None => Put::Lost,
            Some(etag) => {
                self.still_trusted(trusted)?;
                self.hub.wrote(&put.key, &etag, &put.value);
                Put::Won(Version::Text(etag))
            }
        })
    }

    pub(super) async fn remove_one(&self, delete: DeleteIf) -> Result<Delete, StoreError> {
        let Version::Text(etag) = delete.version else {
            return Ok(Delete::Lost);
        };
        let object = self.names.object(&delete.key)?;
        let trusted = self.trusted().await?;
        let body = self.nonces.deletion();
        let won = self.swap(&object, body, etag).await?.is_some();
        if won {
            self.still_trusted(trusted)?;
        }
        Ok(if won { Delete::Won } else { Delete::Lost })
    }

    /// Writes over exactly this version; nothing if it is another one.
    async fn swap(
        &self,
        object: &str,
        body: Vec<u8>,
        etag: Arc<str>,
    ) -> Result<Option<Arc<str>>, StoreError> {
        match self
            .client
            .write(object, body.clone(), &WriteCondition::Etag(etag))
            .await?
        {
            WriteOutcome::Won(etag) => Ok(Some(etag)),
            WriteOutcome::Refused => Ok(None),
            WriteOutcome::Conflict => self.settle(object, &body).await.map(Some),
        }
    }

    /// Writes a key that has no value: it never had one, or the object of it is the mark of its deletion. Each refused attempt is
    /// known to have stored nothing.
    async fn create(
        &self,
        object: &str,
        key: &str,
        body: Vec<u8>,
    ) -> Result<Option<Arc<str>>, StoreError> {
        let mut condition = WriteCondition::Absent;
        for _ in 0..CREATE_ATTEMPTS {
            match self.client.write(object, body.clone(), &condition).await? {
                WriteOutcome::Won(etag) => return Ok(Some(etag)),
                WriteOutcome::Conflict => return self.settle(object, &body).await.map(Some),
                WriteOutcome::Refused => {}
            }
            condition = match self.client.read(object).await? {
                None => WriteCondition::Absent,
                Some(read) if read.body == ObjectBody::Deleted => WriteCondition::Etag(read.etag),
                Some(_) => return Ok(None),
            };
        }
        Err(StoreError::unavailable(format!(
            "key {key:?} keeps being created and deleted concurrently; retry"
        )))
    }

    /// After an answer that says neither that it was written nor that it was not: if it stands there, it was. If it does not, it
    /// may have been overwritten since.
    pub(super) async fn settle(&self, object: &str, body: &[u8]) -> Result<Arc<str>, StoreError> {
        let unknown = |reason: String| {
            StoreError::unknown(format!(
                "S3 service {} was busy with another write of {object:?}, and whether this write succeeded is \
                 unknown: {reason}",
                self.client.site.settings.host
            ))
        };
        match self.client.read(object).await {
            Ok(Some(read)) if read.raw == body => Ok(read.etag),
            Ok(_) => Err(unknown(
                "the object holds another value or was removed".to_owned(),
            )),
            Err(e) => Err(unknown(e.to_string())),
        }
    }
}
