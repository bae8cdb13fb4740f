//! What can go wrong with a request, told by what was seen.

use super::http::{HttpError, HttpResponse};
use super::settings::Settings;
use super::xml::{self, XmlError};
use crate::error::StoreError;

/// A request, as far as messages need it.
pub(super) struct RequestContext<'a> {
    pub(super) settings: &'a Settings,
    /// What it was to do: `read`, `write`, `list`.
    pub(super) verb: &'static str,
    /// The object, or what was listed.
    pub(super) object: &'a str,
    pub(super) writes: bool,
}

impl RequestContext<'_> {
    /// No answer came, or none that can be used.
    pub(super) fn failed(&self, failure: &HttpError) -> StoreError {
        let host = &self.settings.host;
        match failure {
            HttpError::Keys(reason) => StoreError::denied(format!(
                "no credentials for S3: {reason}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )),
            HttpError::NotSent(reason) => StoreError::unavailable(format!(
                "S3 service {host} cannot be reached: {reason}; check that it runs, and the endpoint in the store URL"
            )),
            HttpError::NoAnswer(reason) => {
                self.open(format!("S3 service {host} does not answer: {reason}"))
            }
        }
    }

    /// Refused, for another reason than a condition.
    pub(super) fn refused(&self, answer: &HttpResponse) -> StoreError {
        let said = xml::refusal(&answer.body);
        let Settings { host, bucket, .. } = self.settings;
        let code = match &*said.code {
            "" => format!("status {}", answer.status),
            code => format!("{code} ({})", answer.status),
        };
        match (answer.status, &*said.code) {
            (_, "NoSuchBucket") => StoreError::denied(format!(
                "bucket {bucket:?} does not exist at {host}; create it, or correct the store URL"
            )),
            (_, "RequestTimeTooSkewed" | "RequestExpired") => StoreError::denied(format!(
                "S3 service {host} rejects the time of this machine ({code}); set its clock"
            )),
            (
                _,
                "InvalidAccessKeyId"
                | "SignatureDoesNotMatch"
                | "InvalidToken"
                | "InvalidClientTokenId",
            ) => StoreError::denied(format!(
                "S3 service {host} rejects this access key ({code}); check AWS_ACCESS_KEY_ID and \
                     AWS_SECRET_ACCESS_KEY, or the profile"
            )),
            (_, "ExpiredToken" | "TokenRefreshRequired") => StoreError::denied(format!(
                "the credentials for S3 service {host} have expired ({code}); renew AWS_SESSION_TOKEN"
            )),
            (301 | 307 | 308, _)
            | (
                _,
                "AuthorizationHeaderMalformed"
                | "PermanentRedirect"
                | "IllegalLocationConstraintException",
            ) => self.elsewhere(answer, &said, &code),
            (401 | 403, _) => StoreError::denied(format!(
                "S3 service {host} denies this access key to {} {:?} in bucket {bucket:?} ({code}); see the policy in \
                 docs/stores/s3.md",
                self.verb, self.object
            )),
            (429, _)
            | (_, "SlowDown" | "Throttling" | "ThrottlingException" | "RequestLimitExceeded") => {
                StoreError::unavailable(format!(
                    "S3 service {host} limits the rate of requests ({code}); retry later"
                ))
            }
            (409, _) => self.open(format!(
                "S3 service {host} was busy with another write of {:?} ({code})",
                self.object
            )),
            // S3 says so with a status that means something else.
            (400, "RequestTimeout") => self.open(format!(
                "S3 service {host} waited too long for a request to {} ({code})",
                self.verb
            )),
            (408 | 500.., _) if answer.status != 501 => self.open(format!(
                "S3 service {host} failed to {} ({code}); retry later",
                self.verb
            )),
            _ => StoreError::denied(format!(
                "S3 service {host} rejects the request to {} {:?}: {code} {}",
                self.verb,
                self.object,
                said.message.trim()
            )),
        }
    }

    fn elsewhere(&self, answer: &HttpResponse, said: &XmlError, code: &str) -> StoreError {
        let Settings {
            host,
            bucket,
            region,
            ..
        } = self.settings;
        let there = answer.region.clone().or_else(|| said.region.clone());
        let wanted = match (there, &said.endpoint) {
            (Some(there), _) if there != *region => {
                format!("it is in {there:?}: set AWS_REGION={there}, or write ?region={there}")
            }
            (_, Some(endpoint)) => format!("write ?endpoint=https://{endpoint}"),
            _ => "check region= and endpoint=".to_owned(),
        };
        StoreError::denied(format!(
            "S3 service {host} does not have bucket {bucket:?} in region {region:?} ({code}); {wanted} in the store URL"
        ))
    }

    /// What was asked may have been done.
    fn open(&self, reason: String) -> StoreError {
        if self.writes {
            StoreError::unknown(reason)
        } else {
            StoreError::unavailable(reason)
        }
    }
}
