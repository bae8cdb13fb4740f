//! What an etcd URL says, and what the environment adds to it.

use std::fmt;
use std::path::Path;

use tenure_core::keys::undo_escapes;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::error::StoreError;
use crate::url::redacted;

/// How the URL is written, for messages.
const FORM: &str = "write etcd://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…]/PREFIX[?ca=FILE&cert=FILE&key=FILE], or etcds:// \
                    for TLS";
const DEFAULT_PORT: u16 = 2379;
const DEFAULT_PREFIX: &str = "tenure";

/// A user with a password. Not printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, …)", self.user)
    }
}

/// Parts of a store URL. No file and no variable has been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedUrl {
    /// `HOST:PORT`, each.
    pub(super) endpoints: Vec<String>,
    /// What the keys on the server begin with, before a `/`.
    pub(super) prefix: String,
    user: Option<String>,
    password: Option<String>,
    tls: bool,
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

/// Everything that is needed to connect.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoints: Vec<String>,
    pub(super) prefix: String,
    pub(super) credentials: Option<Credentials>,
    pub(super) tls: Option<ClientTlsConfig>,
}

impl ParsedUrl {
    /// Takes a URL apart; one that cannot be meant is refused by name.
    pub(super) fn new(url: &str) -> Result<Self, StoreError> {
        let bad = |problem: &str| {
            let url = redacted(url);
            StoreError::denied(format!("store URL {url:?} {problem}; {FORM}"))
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("has no //"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let mut parsed = Self {
            endpoints: hosts
                .split(',')
                .map(|host| endpoint(host).map_err(bad))
                .collect::<Result<_, _>>()?,
            prefix: decoded(prefix.trim_end_matches('/')).map_err(bad)?,
            user: None,
            password: None,
            tls: scheme == "etcds",
            ca: None,
            cert: None,
            key: None,
        };
        if parsed.prefix.is_empty() {
            DEFAULT_PREFIX.clone_into(&mut parsed.prefix);
        }
        if let Some(login) = login {
            let (user, password) = match login.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (login, None),
            };
            if user.is_empty() {
                return Err(bad("has a password but no user"));
            }
            parsed.user = Some(decoded(user).map_err(bad)?);
            parsed.password = password.map(decoded).transpose().map_err(bad)?;
        }
        parsed.options(query).map_err(|problem| bad(&problem))?;
        Ok(parsed)
    }

    fn options(&mut self, query: &str) -> Result<(), String> {
        let mut tls = None;
        for option in query.split('&').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value)?;
            match (name, value.as_str()) {
                ("tls", "true") => tls = Some(true),
                ("tls", "false") => tls = Some(false),
                ("tls", _) => return Err("has a tls= that is neither true nor false".to_owned()),
                (_, "") => return Err(format!("has the option {name:?} without a value")),
                ("ca", _) => self.ca = Some(value),
                ("cert", _) => self.cert = Some(value),
                ("key", _) => self.key = Some(value),
                _ => return Err(format!("has the unknown option {name:?}")),
            }
        }
        let files = [&self.ca, &self.cert, &self.key];
        let wanted = self.tls || files.into_iter().any(Option::is_some);
        if wanted && tls == Some(false) {
            return Err("requests TLS but has tls=false".to_owned());
        }
        self.tls = wanted || tls == Some(true);
        Ok(())
    }

    /// Adds what the environment says and reads the certificates. The variables are those of etcdctl; the URL comes first.
    pub(super) fn resolve(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, StoreError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let credentials = self.credentials(&variable)?;
        let tls = if self.tls {
            let file = |given: &Option<String>, name| given.clone().or_else(|| variable(name));
            Some(tls(
                file(&self.ca, "ETCDCTL_CACERT"),
                file(&self.cert, "ETCDCTL_CERT"),
                file(&self.key, "ETCDCTL_KEY"),
            )?)
        } else {
            None
        };
        Ok(Settings {
            endpoints: self.endpoints,
            prefix: self.prefix,
            credentials,
            tls,
        })
    }

    fn credentials(
        &self,
        variable: &impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Credentials>, StoreError> {
        let (user, password) = match &self.user {
            Some(user) => (user.clone(), self.password.clone()),
            // etcdctl takes both in one variable as well.
            None => match variable("ETCDCTL_USER") {
                Some(both) => match both.split_once(':') {
                    Some((user, password)) => (user.to_owned(), Some(password.to_owned())),
                    None => (both, None),
                },
                None => return Ok(None),
            },
        };
        match password.or_else(|| variable("ETCDCTL_PASSWORD")) {
            Some(password) => Ok(Some(Credentials { user, password })),
            None => Err(StoreError::denied(format!(
                "no password for etcd user {user:?}; set ETCDCTL_PASSWORD"
            ))),
        }
    }
}

fn tls(
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
) -> Result<ClientTlsConfig, StoreError> {
    let config = ClientTlsConfig::new();
    let config = match ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(pem("ca", &ca)?)),
        // Nothing said: whom this machine trusts.
        None => config.with_native_roots(),
    };
    match (cert, key) {
        (Some(cert), Some(key)) => {
            Ok(config.identity(Identity::from_pem(pem("cert", &cert)?, pem("key", &key)?)))
        }
        (None, None) => Ok(config),
        _ => Err(StoreError::denied(
            "etcd client certificate: cert= and key= (ETCDCTL_CERT and ETCDCTL_KEY) go together; give both or neither",
        )),
    }
}

fn pem(what: &str, path: &str) -> Result<Vec<u8>, StoreError> {
    std::fs::read(Path::new(path)).map_err(|e| {
        StoreError::denied(format!(
            "{what} file {path:?} for etcd cannot be read: {e}; give a PEM file"
        ))
    })
}

/// `HOST`, `HOST:PORT` or `[V6]:PORT` as `HOST:PORT`.
fn endpoint(given: &str) -> Result<String, &'static str> {
    let (host, port) = match given.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
        _ => (given, None),
    };
    if host.is_empty() {
        return Err("has no host");
    }
    if host.contains(':') && !host.starts_with('[') {
        return Err("has an IPv6 address without brackets");
    }
    let port = match port {
        Some(port) => port
            .parse()
            .map_err(|_| "has a port that is not a number")?,
        None => DEFAULT_PORT,
    };
    Ok(format!("{host}:{port}"))
}

/// Undoes the percent signs of a URL.
fn decoded(text: &str) -> Result<String, &'static str> {
    undo_escapes(text, b'%').ok_or(
        "has a % that is not followed by two hexadecimal digits, or that does not encode UTF-8",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &str) -> Option<String> {
        None
    }

    fn refused(url: &str) -> String {
        match ParsedUrl::new(url).and_then(|p| p.resolve(nothing)) {
            Err(StoreError::Denied { reason }) => reason,
            other => panic!("{url} should be refused, but: {other:?}"),
        }
    }

    #[test]
    fn a_url_names_endpoints_prefix_and_user() {
        let parsed = ParsedUrl::new("etcd://ann:p%40ss:w@a:1,b,[::1]:3/shops/eu/").unwrap();
        assert_eq!(parsed.endpoints, ["a:1", "b:2379", "[::1]:3"]);
        assert_eq!(parsed.prefix, "shops/eu");
        let settings = parsed.resolve(nothing).unwrap();
        let credentials = settings.credentials.clone().unwrap();
        assert_eq!(credentials.user, "ann");
        assert_eq!(credentials.password, "p@ss:w");
        assert!(!format!("{settings:?}").contains("p@ss"), "{settings:?}");
        assert!(settings.tls.is_none());
    }

    #[test]
    fn what_the_url_leaves_out_comes_from_etcdctls_variables() {
        let parsed = || ParsedUrl::new("etcd://h").unwrap();
        assert_eq!(parsed().prefix, "tenure");
        assert_eq!(parsed().resolve(nothing).unwrap().credentials, None);
        let both = |name: &str| (name == "ETCDCTL_USER").then(|| "ann:pw".to_owned());
        let credentials = parsed().resolve(both).unwrap().credentials.unwrap();
        assert_eq!((&*credentials.user, &*credentials.password), ("ann", "pw"));
        let apart = |name: &str| match name {
            "ETCDCTL_PASSWORD" => Some("pw".to_owned()),
            _ => None,
        };
        let named = ParsedUrl::new("etcd://bob@h").unwrap();
        let credentials = named.resolve(apart).unwrap().credentials.unwrap();
        assert_eq!((&*credentials.user, &*credentials.password), ("bob", "pw"));
    }

    #[test]
    fn tls_is_asked_for_by_scheme_by_option_or_by_a_file() {
        for url in ["etcds://h/p", "etcd://h/p?tls=true", "etcd://h/p?ca=/x"] {
            assert!(ParsedUrl::new(url).unwrap().tls, "{url}");
        }
        assert!(!ParsedUrl::new("etcd://h/p?tls=false").unwrap().tls);
        // A variable that is set for other clusters does not change what the URL says.
        let variable = |name: &str| (name == "ETCDCTL_CACERT").then(|| "/none".to_owned());
        let plain = ParsedUrl::new("etcd://h/p").unwrap().resolve(variable);
        assert!(plain.unwrap().tls.is_none());
        let reason = ParsedUrl::new("etcds://h/p").unwrap().resolve(variable);
        assert!(reason.unwrap_err().to_string().contains("/none"));
    }

    #[test]
    fn a_url_that_cannot_be_meant_is_refused_by_name() {
        for (url, wanted) in [
            ("etcd:h:1/p", "no //"),
            ("etcd:///p", "has no host"),
            ("etcd://h:x/p", "port that is not a number"),
            ("etcd://::1/p", "without brackets"),
            ("etcd://:pw@h/p", "a password but no user"),
            ("etcd://ann@h/p", "ETCDCTL_PASSWORD"),
            ("etcd://h/p?tls=maybe", "neither true nor false"),
            ("etcds://h/p?tls=false", "has tls=false"),
            ("etcd://h/p?timeout=3", "unknown option \"timeout\""),
            ("etcd://h/p?ca=", "without a value"),
            ("etcd://h/%zz", "hexadecimal"),
            ("etcd://h/p?cert=/etc/hostname", "give both or neither"),
        ] {
            let reason = refused(url);
            assert!(reason.contains(wanted), "{url}: {reason}");
        }
        let reason = refused("etcd://ann:hunter2@h:x/p");
        assert!(!reason.contains("hunter2"), "{reason}");
    }
}
