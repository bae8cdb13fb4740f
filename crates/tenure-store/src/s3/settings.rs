//! What an S3 URL says, and what the environment adds to it.

use std::net::IpAddr;
use std::time::Duration;

use tenure_core::keys::undo_escapes;

use super::aws_profile::{self, AwsProfile};
use crate::error::StoreError;
use crate::url::redacted;

/// How the URL is written, for messages.
const FORM: &str = "write s3://BUCKET/PREFIX[?endpoint=URL&region=REGION&path_style=BOOL&allow_http=BOOL\
                    &credentials=FILE&profile=NAME&poll=DURATION]";
/// What services without regions are content with.
const ANY_REGION: &str = "us-east-1";
/// How often the bucket is looked at by those who watch.
pub(super) const POLL: Duration = Duration::from_secs(2);
const FASTEST_POLL: Duration = Duration::from_millis(10);
const SLOWEST_POLL: Duration = Duration::from_secs(60);
/// S3 takes no longer names for objects; what we add to a prefix is left out of it.
const LONGEST_PREFIX: usize = 200;

/// Parts of a store URL. No file and no variable has been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedUrl {
    pub(super) bucket: String,
    /// What every object begins with: empty, or with a `/` at its end.
    pub(super) root: String,
    pub(super) poll: Duration,
    endpoint: Option<String>,
    region: Option<String>,
    path_style: Option<bool>,
    allow_http: bool,
    profile: Option<String>,
    credentials: Option<String>,
}

/// Everything that is needed to find the bucket.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) bucket: String,
    pub(super) root: String,
    pub(super) region: String,
    /// Where requests go: scheme and host, without a `/` at the end.
    pub(super) base: String,
    /// The `Host` that is signed.
    pub(super) host: String,
    /// What the path begins with: `/BUCKET` or nothing.
    pub(super) before: String,
    pub(super) poll: Duration,
    /// What the files of the `aws` command say, if anything.
    pub(super) profile: Option<AwsProfile>,
    /// Whether the URL says whose key to use: variables then do not.
    pub(super) key_is_named: bool,
    /// A file of certificates to trust.
    pub(super) ca: Option<String>,
}

impl ParsedUrl {
    /// Takes a URL apart; one that cannot be meant is refused by name.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let bad = |problem: &str| {
            let url = redacted(url);
            StoreError::denied(format!("store URL {url:?} {problem}; {FORM}"))
        };
        let rest = url.strip_prefix("s3://").ok_or_else(|| bad("has no //"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.contains('@') {
            return Err(bad(
                "contains credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead",
            ));
        }
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        if !(3..=63).contains(&bucket.len()) || !bucket.bytes().all(fits) {
            return Err(bad(
                "has no bucket name of 3 to 63 letters, digits, - and .",
            ));
        }
        let mut parsed = Self {
            bucket: bucket.to_owned(),
            root: root(prefix).map_err(|problem| bad(&problem))?,
            poll: POLL,
            endpoint: None,
            region: None,
            path_style: None,
            allow_http: false,
            profile: None,
            credentials: None,
        };
        parsed.options(query).map_err(|problem| bad(&problem))?;
        Ok(parsed)
    }

    fn options(&mut self, query: &str) -> Result<(), String> {
        for option in query.split('&').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = undo_escapes(value, b'%')
                .filter(|value| !value.is_empty())
                .ok_or_else(|| format!("has the option {name:?} without a readable value"))?;
            match name {
                "endpoint" => self.endpoint = Some(value),
                "region" => self.region = Some(value),
                "profile" => self.profile = Some(value),
                "credentials" => self.credentials = Some(value),
                "path_style" => self.path_style = Some(truth(name, &value)?),
                "allow_http" => self.allow_http = truth(name, &value)?,
                "poll" => self.poll = duration(&value)?,
                _ => return Err(format!("has the unknown option {name:?}")),
            }
        }
        Ok(())
    }

    /// Adds what the environment says, by the variables and files of the `aws` command; the URL comes first.
    pub(super) fn resolve(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, StoreError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let key_is_named = self.profile.is_some() || self.credentials.is_some();
        let profile = aws_profile::load(&self.profile, &self.credentials, &variable)?;
        let of_profile = |pick: fn(&AwsProfile) -> &Option<String>| {
            profile.as_ref().and_then(|profile| pick(profile).clone())
        };
        let region = self
            .region
            .clone()
            .or_else(|| variable("AWS_REGION"))
            .or_else(|| variable("AWS_DEFAULT_REGION"))
            .or_else(|| of_profile(|p| &p.region));
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| variable("AWS_ENDPOINT_URL_S3"))
            .or_else(|| variable("AWS_ENDPOINT_URL"))
            .or_else(|| of_profile(|p| &p.endpoint));
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            (None, Some(_)) => ANY_REGION.to_owned(),
            (None, None) => {
                return Err(StoreError::denied(format!(
                    "no region for bucket {:?}; set AWS_REGION, or write ?region= into the store URL",
                    self.bucket
                )));
            }
        };
        let (base, host, before) = self.address(endpoint, &region)?;
        Ok(Settings {
            bucket: self.bucket,
            root: self.root,
            region,
            base,
            host,
            before,
            poll: self.poll,
            profile,
            key_is_named,
            ca: variable("AWS_CA_BUNDLE"),
        })
    }

    /// Where requests go: the base of their URLs, the host that is signed, and what their paths begin with.
    fn address(
        &self,
        endpoint: Option<String>,
        region: &str,
    ) -> Result<(String, String, String), StoreError> {
        let bucket = &self.bucket;
        // A bucket with a dot has no certificate of its own at AWS.
        let path_style = self
            .path_style
            .unwrap_or(endpoint.is_some() || bucket.contains('.'));
        let endpoint = endpoint.unwrap_or_else(|| format!("https://s3.{region}.amazonaws.com"));
        let bad = |problem: &str| StoreError::denied(format!("S3 endpoint {endpoint:?} {problem}"));
        let (scheme, rest) = endpoint
            .split_once("://")
            .filter(|(scheme, _)| ["http", "https"].contains(scheme))
            .ok_or_else(|| bad("is not a URL; write http://HOST:PORT or https://HOST"))?;
        let host = rest.trim_end_matches('/');
        if host.is_empty() || host.contains(['/', '@', '?', '#', ' ']) {
            return Err(bad("has more than a host and a port; remove the rest"));
        }
        if scheme == "http" && !self.allow_http && !is_loopback(host) {
            return Err(bad(
                "sends everything unencrypted; use https://, or add &allow_http=true to the store URL",
            ));
        }
        // Clients leave the usual port out of `Host`, and it is signed as it is sent.
        let usual = if scheme == "http" { ":80" } else { ":443" };
        let host = host.strip_suffix(usual).unwrap_or(host).to_lowercase();
        Ok(if path_style {
            (format!("{scheme}://{host}"), host, format!("/{bucket}"))
        } else {
            let host = format!("{bucket}.{host}");
            (format!("{scheme}://{host}"), host, String::new())
        })
    }
}

/// What objects begin with: a path without empty parts.
fn root(prefix: &str) -> Result<String, String> {
    let prefix = prefix.trim_end_matches('/');
    if prefix.is_empty() {
        return Ok(String::new());
    }
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.=/".contains(&b);
    let parts_fit = prefix
        .split('/')
        .all(|part| !part.is_empty() && !part.starts_with('.'));
    if !prefix.bytes().all(fits) || !parts_fit || prefix.len() > LONGEST_PREFIX {
        return Err(format!(
            "has a prefix that is not {LONGEST_PREFIX} or fewer letters, digits, -, _, . and =, in parts between slashes"
        ));
    }
    Ok(format!("{prefix}/"))
}

fn truth(name: &str, value: &str) -> Result<bool, String> {
    value
        .parse()
        .map_err(|_| format!("has {name}={value:?}, which is neither true nor false"))
}

/// Reads `500ms` or `2s`.
fn duration(value: &str) -> Result<Duration, String> {
    let (number, unit) = match value.strip_suffix("ms") {
        Some(number) => (number, 1),
        None => (value.strip_suffix('s').unwrap_or(""), 1000),
    };
    let read = number
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .map(Duration::from_millis);
    read.filter(|d| (FASTEST_POLL..=SLOWEST_POLL).contains(d))
        .ok_or_else(|| format!("has poll={value:?}, which is not from 10ms to 60s"))
}

fn is_loopback(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
#[path = "settings_tests.rs"]
mod tests;
