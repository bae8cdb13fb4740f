//! What a NATS URL says, and what the environment adds to it.

use std::fmt;
use std::path::{Path, PathBuf};

use async_nats::ConnectOptions;
use tenure_core::keys::undo_escapes;

use crate::error::StoreError;
use crate::url::redacted;

/// How the URL is written, for messages.
const FORM: &str = "write nats://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/BUCKET[?creds=FILE&replicas=N&ca=FILE&cert=FILE\
                    &key=FILE&monitor=HOST:PORT], or tls:// for TLS";
const DEFAULT_PORT: u16 = 4222;
const DEFAULT_BUCKET: &str = "tenure";
/// JetStream keeps no more copies.
const MOST_REPLICAS: usize = 5;

/// Who we are to the server. Not printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Login {
    Nobody,
    Password {
        user: String,
        password: String,
    },
    Token(String),
    /// The text of a credentials file.
    Credentials(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nobody => "Nobody",
            Self::Password { .. } => "Password(…)",
            Self::Token(_) => "Token(…)",
            Self::Credentials(_) => "Credentials(…)",
        })
    }
}

/// Parts of a store URL. No file and no variable has been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ParsedUrl {
    /// `HOST:PORT`, each.
    pub(super) endpoints: Vec<String>,
    pub(super) bucket: String,
    pub(super) replicas: Option<usize>,
    pub(super) monitor: Option<String>,
    login: Login,
    tls: bool,
    creds: Option<String>,
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

/// Everything that is needed to connect.
#[derive(Clone, Debug)]
pub(super) struct Settings {
    pub(super) endpoints: Vec<String>,
    pub(super) bucket: String,
    /// How many copies a bucket gets that is made.
    pub(super) replicas: usize,
    pub(super) monitor: Option<String>,
    login: Login,
    tls: bool,
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
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
        let (authority, bucket) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (login, hosts),
            None => ("", authority),
        };
        let mut parsed = Self {
            endpoints: hosts
                .split(',')
                .map(|host| endpoint(host).map_err(bad))
                .collect::<Result<_, _>>()?,
            bucket: bucket_name(bucket.trim_end_matches('/')).map_err(bad)?,
            replicas: None,
            monitor: None,
            login: login_of(login).map_err(bad)?,
            tls: scheme == "tls",
            creds: None,
            ca: None,
            cert: None,
            key: None,
        };
        parsed.options(query).map_err(|problem| bad(&problem))?;
        Ok(parsed)
    }

    fn options(&mut self, query: &str) -> Result<(), String> {
        for option in query.split('&').filter(|o| !o.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            let value = decoded(value)?;
            match name {
                _ if value.is_empty() => {
                    return Err(format!("has the option {name:?} without a value"));
                }
                "replicas" => self.replicas = Some(replicas(&value)?),
                "monitor" => self.monitor = Some(value),
                "creds" => self.creds = Some(value),
                "ca" => self.ca = Some(value),
                "cert" => self.cert = Some(value),
                "key" => self.key = Some(value),
                _ => return Err(format!("has the unknown option {name:?}")),
            }
        }
        let files = [&self.ca, &self.cert, &self.key];
        self.tls |= files.into_iter().any(Option::is_some);
        Ok(())
    }

    /// Copies that a bucket has which is made by this URL.
    pub(super) fn replicas_to_make(&self) -> usize {
        // Three who are named are a cluster that can spare one.
        let usual = if self.endpoints.len() >= 3 { 3 } else { 1 };
        self.replicas.unwrap_or(usual)
    }

    /// Adds what the environment says, and sees to it that the files can be read. The variables are those of the `nats`
    /// command; the URL comes first.
    pub(super) fn resolve(
        self,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, StoreError> {
        let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
        let login = self.login(&variable)?;
        let file = |given: &Option<String>, name: &str| {
            let given = given.clone().or_else(|| variable(name));
            // Variables that are set for other servers do not change what the URL says.
            given.filter(|_| self.tls)
        };
        let readable = |what: &str, path: Option<String>| {
            path.map(|path| text(what, &path).map(|_| PathBuf::from(path)))
                .transpose()
        };
        let ca = readable("ca", file(&self.ca, "NATS_CA"))?;
        let cert = readable("cert", file(&self.cert, "NATS_CERT"))?;
        let key = readable("key", file(&self.key, "NATS_KEY"))?;
        let identity = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                return Err(StoreError::denied(
                    "NATS client certificate: cert= and key= (NATS_CERT and NATS_KEY) go together; give both or neither",
                ));
            }
        };
        Ok(Settings {
            replicas: self.replicas_to_make(),
            endpoints: self.endpoints,
            bucket: self.bucket,
            monitor: self.monitor,
            login,
            tls: self.tls,
            ca,
            identity,
        })
    }

    fn login(&self, variable: &impl Fn(&str) -> Option<String>) -> Result<Login, StoreError> {
        if let Some(path) = &self.creds {
            return Ok(Login::Credentials(text("creds", path)?));
        }
        match &self.login {
            Login::Nobody => {}
            given => return Ok(given.clone()),
        }
        if let Some(path) = variable("NATS_CREDS") {
            return Ok(Login::Credentials(text("NATS_CREDS", &path)?));
        }
        match (variable("NATS_USER"), variable("NATS_PASSWORD")) {
            (Some(user), Some(password)) => Ok(Login::Password { user, password }),
            (Some(user), None) => Err(StoreError::denied(format!(
                "no password for NATS user {user:?}; set NATS_PASSWORD"
            ))),
            (None, _) => Ok(Login::Nobody),
        }
    }
}

impl Settings {
    /// The scheme that a server's address is written with.
    pub(super) fn scheme(&self) -> &'static str {
        if self.tls { "tls" } else { "nats" }
    }

    /// How a connection is made, apart from whereto.
    pub(super) fn options(&self) -> Result<ConnectOptions, StoreError> {
        let options = ConnectOptions::new();
        let options = match &self.login {
            Login::Nobody => options,
            Login::Password { user, password } => {
                options.user_and_password(user.clone(), password.clone())
            }
            Login::Token(token) => options.token(token.clone()),
            Login::Credentials(text) => options.credentials(text).map_err(|_| {
                StoreError::denied(
                    "the credentials file for NATS has no user JWT with its seed; create one with `nsc generate creds`",
                )
            })?,
        };
        let options = match &self.ca {
            Some(ca) => options.add_root_certificates(ca.clone()),
            None => options,
        };
        let options = match &self.identity {
            Some((cert, key)) => options.add_client_certificate(cert.clone(), key.clone()),
            None => options,
        };
        Ok(options.require_tls(self.tls))
    }
}

fn text(what: &str, path: &str) -> Result<String, StoreError> {
    std::fs::read_to_string(Path::new(path)).map_err(|e| {
        StoreError::denied(format!(
            "{what} file {path:?} for NATS cannot be read: {e}; check the path and its permissions"
        ))
    })
}

fn login_of(given: &str) -> Result<Login, &'static str> {
    match given.split_once(':') {
        None if given.is_empty() => Ok(Login::Nobody),
        // As all clients of NATS have it: who is alone is a token.
        None => Ok(Login::Token(decoded(given)?)),
        Some(("", _)) => Err("has a password but no user"),
        Some((user, password)) => Ok(Login::Password {
            user: decoded(user)?,
            password: decoded(password)?,
        }),
    }
}

fn bucket_name(given: &str) -> Result<String, &'static str> {
    let name = if given.is_empty() {
        DEFAULT_BUCKET
    } else {
        given
    };
    let fits = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.bytes().all(fits) {
        Ok(name.to_owned())
    } else {
        Err("names a bucket with other characters than letters, digits, - and _")
    }
}

fn replicas(given: &str) -> Result<usize, String> {
    match given.parse() {
        Ok(n) if (1..=MOST_REPLICAS).contains(&n) => Ok(n),
        _ => Err(format!(
            "has a replicas= that is not a number from 1 to {MOST_REPLICAS}"
        )),
    }
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
    fn a_url_names_servers_bucket_and_who_one_is() {
        let parsed = ParsedUrl::new("nats://ann:p%40ss@a:1,b,[::1]:3/shop/?replicas=5").unwrap();
        assert_eq!(parsed.endpoints, ["a:1", "b:4222", "[::1]:3"]);
        assert_eq!((&*parsed.bucket, parsed.replicas), ("shop", Some(5)));
        let settings = parsed.resolve(nothing).unwrap();
        let (user, password) = ("ann".to_owned(), "p@ss".to_owned());
        assert_eq!(settings.login, Login::Password { user, password });
        assert_eq!(settings.replicas, 5);
        let token = ParsedUrl::new("nats://s3cret@h").unwrap();
        assert_eq!(token.login, Login::Token("s3cret".to_owned()));
        for shown in [format!("{settings:?}"), format!("{token:?}")] {
            assert!(
                !shown.contains("p@ss") && !shown.contains("s3cret"),
                "{shown}"
            );
        }
    }

    #[test]
    fn what_the_url_leaves_out_comes_from_the_variables_of_the_nats_command() {
        let parsed = || ParsedUrl::new("nats://h").unwrap();
        assert_eq!(parsed().bucket, "tenure");
        assert_eq!(parsed().resolve(nothing).unwrap().login, Login::Nobody);
        let both = |name: &str| match name {
            "NATS_USER" => Some("ann".to_owned()),
            "NATS_PASSWORD" => Some("pw".to_owned()),
            "NATS_CA" => Some("/none".to_owned()),
            _ => None,
        };
        let settings = parsed().resolve(both).unwrap();
        assert!(matches!(settings.login, Login::Password { .. }));
        assert_eq!(settings.ca, None, "only where TLS is asked for");
        let reason = ParsedUrl::new("tls://h")
            .unwrap()
            .resolve(both)
            .unwrap_err();
        assert!(reason.to_string().contains("/none"), "{reason}");
        let half = |name: &str| (name == "NATS_USER").then(|| "ann".to_owned());
        let reason = parsed().resolve(half).unwrap_err();
        assert!(reason.to_string().contains("NATS_PASSWORD"), "{reason}");
    }

    #[test]
    fn a_bucket_gets_three_copies_where_three_servers_are_named() {
        let replicas = |url: &str| {
            ParsedUrl::new(url)
                .unwrap()
                .resolve(nothing)
                .unwrap()
                .replicas
        };
        assert_eq!(replicas("nats://a/b"), 1);
        assert_eq!(replicas("nats://a,b/b"), 1);
        assert_eq!(replicas("nats://a,b,c/b"), 3);
        assert_eq!(replicas("nats://a,b,c/b?replicas=1"), 1);
    }

    #[test]
    fn a_url_that_cannot_be_meant_is_refused_by_name() {
        for (url, wanted) in [
            ("nats:h:1/b", "no //"),
            ("nats:///b", "has no host"),
            ("nats://h:x/b", "port that is not a number"),
            ("nats://::1/b", "without brackets"),
            ("nats://:pw@h/b", "a password but no user"),
            ("nats://h/a.b", "other characters"),
            ("nats://h/a/b", "other characters"),
            ("nats://h/b?replicas=0", "not a number from 1 to 5"),
            ("nats://h/b?timeout=3", "unknown option \"timeout\""),
            ("nats://h/b?ca=", "without a value"),
            (
                "nats://h/b?creds=/none",
                "\"/none\" for NATS cannot be read",
            ),
            ("nats://h/b?cert=/etc/hostname", "give both or neither"),
        ] {
            let reason = refused(url);
            assert!(reason.contains(wanted), "{url}: {reason}");
        }
        let reason = refused("nats://ann:hunter2@h:x/b");
        assert!(!reason.contains("hunter2"), "{reason}");
    }

    #[test]
    fn a_credentials_file_without_credentials_is_refused() {
        let parsed = ParsedUrl::new("nats://h/b?creds=/etc/hostname").unwrap();
        let settings = parsed.resolve(nothing).unwrap();
        let reason = settings.options().map(|_| ()).unwrap_err().to_string();
        assert!(reason.contains("nsc generate creds"), "{reason}");
    }
}
