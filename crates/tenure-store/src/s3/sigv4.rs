//! Signatures, version 4, as every service that speaks S3 asks for them.
//!
//! Our own because the time that is signed is the store's: a client whose clock is hours off would otherwise be refused.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use object_store::aws::AwsCredential;
use ring::{digest, hmac};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A request, as far as it is signed.
pub(super) struct SignedRequest<'a> {
    pub(super) method: &'a str,
    pub(super) host: &'a str,
    /// Escaped already.
    pub(super) path: &'a str,
    /// Escaped and in order already.
    pub(super) query: &'a str,
    /// More headers, their names in lower case.
    pub(super) headers: &'a [(&'static str, String)],
    pub(super) body: &'a [u8],
}

impl SignedRequest<'_> {
    /// The headers that the request must have besides those that it has.
    pub(super) fn headers(
        &self,
        key: &AwsCredential,
        region: &str,
        now: SystemTime,
    ) -> Vec<(&'static str, String)> {
        let stamp = stamp(now);
        let body = hex(digest::digest(&digest::SHA256, self.body).as_ref());
        let mut more = vec![
            ("x-amz-content-sha256", body.clone()),
            ("x-amz-date", stamp.clone()),
        ];
        if let Some(token) = &key.token {
            more.push(("x-amz-security-token", token.clone()));
        }
        let mut signed: Vec<(&str, &str)> = vec![("host", self.host)];
        let named = self.headers.iter().chain(&more);
        signed.extend(named.map(|(name, value)| (*name, value.trim())));
        signed.sort_unstable();
        let mut lines = String::new();
        for (name, value) in &signed {
            let _ = writeln!(lines, "{name}:{value}");
        }
        let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let request = format!(
            "{}\n{}\n{}\n{lines}\n{names}\n{body}",
            self.method, self.path, self.query
        );
        let day = &stamp[..8];
        let scope = format!("{day}/{region}/s3/aws4_request");
        let request = hex(digest::digest(&digest::SHA256, request.as_bytes()).as_ref());
        let text = format!("{ALGORITHM}\n{stamp}\n{scope}\n{request}");
        let first = format!("AWS4{}", key.secret_key);
        let mut secret = mac(first.as_bytes(), day);
        for part in [region, "s3", "aws4_request"] {
            secret = mac(secret.as_ref(), part);
        }
        let signature = hex(mac(secret.as_ref(), &text).as_ref());
        let id = &key.key_id;
        more.push((
            "authorization",
            format!(
                "{ALGORITHM} Credential={id}/{scope}, SignedHeaders={names}, Signature={signature}"
            ),
        ));
        more
    }
}

fn mac(key: &[u8], text: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Escapes all but what never has a meaning, and `/` where it separates.
pub(super) fn escaped(text: &str, keep_slash: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
        if plain || (keep_slash && byte == b'/') {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// `20261116T093000Z`.
fn stamp(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = crate::timestamps::date(days as i64);
    let (h, m, s) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{day:02}T{h:02}{m:02}{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(token: Option<&str>) -> AwsCredential {
        AwsCredential {
            key_id: "AKIAIOSFODNN7EXAMPLE".to_owned(),
            secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
            token: token.map(str::to_owned),
        }
    }

    fn then() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_369_353_600)
    }

    fn of<'a>(headers: &'a [(&'static str, String)], name: &str) -> &'a str {
        &headers.iter().find(|(n, _)| *n == name).unwrap().1
    }

    /// The first example of the service's own documentation.
    #[test]
    fn a_request_is_signed_as_the_documentation_has_it() {
        let request = SignedRequest {
            method: "GET",
            host: "examplebucket.s3.amazonaws.com",
            path: "/test.txt",
            query: "",
            headers: &[("range", "bytes=0-9".to_owned())],
            body: b"",
        };
        let headers = request.headers(&key(None), "us-east-1", then());
        assert_eq!(of(&headers, "x-amz-date"), "20130524T000000Z");
        let signed = of(&headers, "authorization");
        let wanted = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
        assert!(signed.ends_with(&format!("Signature={wanted}")), "{signed}");
        assert!(!signed.contains("wJalr"), "{signed}");
    }

    #[test]
    fn a_token_is_sent_and_signed() {
        let request = SignedRequest {
            method: "PUT",
            host: "h",
            path: "/",
            query: "a=b",
            headers: &[],
            body: b"x",
        };
        let headers = request.headers(&key(Some("tkn")), "r", then());
        assert_eq!(of(&headers, "x-amz-security-token"), "tkn");
        assert!(of(&headers, "authorization").contains(";x-amz-security-token,"));
    }

    #[test]
    fn escapes_leave_nothing_that_has_a_meaning() {
        assert_eq!(escaped("a/b =~ä", true), "a/b%20%3D~%C3%A4");
        assert_eq!(escaped("a/b", false), "a%2Fb");
    }
}
