//! The requests that we make of a bucket.

use std::sync::Arc;
use std::time::SystemTime;

use super::errors::RequestContext;
use super::http::{HttpClient, HttpRequest, HttpResponse, bare};
use super::object_format::ObjectBody;
use super::request_counts::RequestKind;
use super::xml;
use crate::error::StoreError;

/// What S3 gives at a time.
const PAGE: usize = 1000;

/// What a write expects of its object.
#[derive(Clone, Debug)]
pub(super) enum WriteCondition {
    Absent,
    Etag(Arc<str>),
}

/// How a conditional write ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Won(Arc<str>),
    /// The condition did not hold: nothing was written.
    Refused,
    /// Another write was under way: it may or may not have been written.
    Conflict,
}

/// An object that was read.
pub(super) struct ObjectRead {
    pub(super) etag: Arc<str>,
    pub(super) body: ObjectBody,
    pub(super) raw: Vec<u8>,
}

/// One page of a list.
pub(super) struct ListPage {
    pub(super) objects: Vec<xml::ListedObject>,
    pub(super) next: Option<String>,
    pub(super) date: Option<SystemTime>,
}

/// Where a page begins.
pub(super) enum PageStart {
    Start,
    After(String),
    Token(String),
}

impl HttpClient {
    fn about<'a>(
        &'a self,
        verb: &'static str,
        object: &'a str,
        writes: bool,
    ) -> RequestContext<'a> {
        RequestContext {
            settings: &self.site.settings,
            verb,
            object,
            writes,
        }
    }

    /// The condition as this service takes it.
    fn condition(&self, condition: &WriteCondition) -> (&'static str, String) {
        match condition {
            WriteCondition::Absent => ("if-none-match", "*".to_owned()),
            WriteCondition::Etag(etag) => ("if-match", self.site.manners.written(etag)),
        }
    }

    pub(super) async fn read(&self, object: &str) -> Result<Option<ObjectRead>, StoreError> {
        let about = self.about("read", object, false);
        let ask = HttpRequest {
            kind: RequestKind::Get,
            object,
            ..HttpRequest::default()
        };
        let answer = self.ask(ask).await.map_err(|e| about.failed(&e))?;
        if answer.status == 404 && !is_bucket_missing(&answer) {
            return Ok(None);
        }
        match answer.etag.clone() {
            Some(etag) if answer.is_ok() => Ok(Some(ObjectRead {
                etag,
                body: ObjectBody::read(&answer.body),
                raw: answer.body,
            })),
            _ => Err(about.refused(&answer)),
        }
    }

    pub(super) async fn write(
        &self,
        object: &str,
        body: Vec<u8>,
        condition: &WriteCondition,
    ) -> Result<WriteOutcome, StoreError> {
        let about = self.about("write", object, true);
        let ask = HttpRequest {
            kind: RequestKind::Put,
            object,
            headers: vec![self.condition(condition)],
            body,
            ..HttpRequest::default()
        };
        let answer = self.ask(ask).await.map_err(|e| about.failed(&e))?;
        match answer.status {
            200..300 => match answer.etag {
                Some(etag) if !etag.is_empty() => Ok(WriteOutcome::Won(etag)),
                _ => Err(StoreError::unknown(format!(
                    "S3 service {} returns no ETag for {object:?}; use a service that does",
                    self.site.settings.host
                ))),
            },
            304 | 412 => Ok(WriteOutcome::Refused),
            // What is not there does not match.
            404 if matches!(condition, WriteCondition::Etag(_)) && !is_bucket_missing(&answer) => {
                Ok(WriteOutcome::Refused)
            }
            409 if !is_bucket_missing(&answer) => Ok(WriteOutcome::Conflict),
            _ => Err(about.refused(&answer)),
        }
    }

    /// Removes an object; false if the condition did not hold. Not every service knows conditions here.
    pub(super) async fn remove(
        &self,
        object: &str,
        condition: Option<&WriteCondition>,
    ) -> Result<bool, StoreError> {
        let about = self.about("delete", object, true);
        let ask = HttpRequest {
            kind: RequestKind::Delete,
            object,
            headers: condition.map(|c| self.condition(c)).into_iter().collect(),
            ..HttpRequest::default()
        };
        let answer = self.ask(ask).await.map_err(|e| about.failed(&e))?;
        match answer.status {
            200..300 => Ok(true),
            412 | 409 => Ok(false),
            404 if !is_bucket_missing(&answer) => Ok(false),
            _ => Err(about.refused(&answer)),
        }
    }

    /// One page of the objects that begin with `prefix`, `most` of them.
    pub(super) async fn page(
        &self,
        prefix: &str,
        from: &PageStart,
        most: usize,
    ) -> Result<ListPage, StoreError> {
        let about = self.about("list", prefix, false);
        let mut query = vec![
            ("list-type", "2".to_owned()),
            ("max-keys", most.clamp(1, PAGE).to_string()),
            ("prefix", prefix.to_owned()),
        ];
        match from {
            PageStart::Start => {}
            PageStart::After(object) => query.push(("start-after", object.clone())),
            PageStart::Token(token) => query.push(("continuation-token", token.clone())),
        }
        let ask = HttpRequest {
            kind: RequestKind::List,
            query,
            ..HttpRequest::default()
        };
        let answer = self.ask(ask).await.map_err(|e| about.failed(&e))?;
        if !answer.is_ok() {
            return Err(about.refused(&answer));
        }
        let unreadable = |reason| {
            let host = &self.site.settings.host;
            StoreError::corrupt(
                prefix,
                format!("the list of S3 service {host} cannot be read: {reason}"),
            )
        };
        let page = xml::page(&answer.body).map_err(unreadable)?;
        let next = match (page.is_truncated, page.next_continuation_token) {
            (true, None) => return Err(unreadable("the list is truncated".to_owned())),
            (true, token) => token,
            (false, _) => None,
        };
        let mut objects = page.contents;
        for object in &mut objects {
            object.etag = bare(&object.etag).to_string();
        }
        Ok(ListPage {
            objects,
            next,
            date: answer.date,
        })
    }

    /// What the bucket says of itself, such as its `versioning`. Nothing if it says nothing.
    pub(super) async fn about_bucket(
        &self,
        what: &'static str,
    ) -> Result<Option<String>, StoreError> {
        let about = self.about("read", what, false);
        let ask = HttpRequest {
            kind: RequestKind::Get,
            query: vec![(what, String::new())],
            ..HttpRequest::default()
        };
        let answer = self.ask(ask).await.map_err(|e| about.failed(&e))?;
        match answer.status {
            200..300 => Ok(Some(String::from_utf8_lossy(&answer.body).into_owned())),
            404 if !is_bucket_missing(&answer) => Ok(None),
            _ => Err(about.refused(&answer)),
        }
    }
}

fn is_bucket_missing(answer: &HttpResponse) -> bool {
    xml::refusal(&answer.body).code == "NoSuchBucket"
}
