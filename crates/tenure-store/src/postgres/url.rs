//! What a `postgres:` URL names. The spelling is libpq's, as far as it makes sense here.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::pgpass;
use super::tables::TableNames;
use super::tls::{TlsMode, TlsSettings};
use tenure_core::keys::undo_escapes;

use crate::error::StoreError;

const DEFAULT_PORT: u16 = 5432;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The parameters that may stand behind the question mark.
const KNOWN: [&str; 15] = [
    "schema",
    "table",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
    "connect_timeout",
    "application_name",
    "options",
    "host",
    "port",
    "user",
    "password",
    "dbname",
    "passfile",
];

/// One place where the server may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerHost {
    Tcp { name: String, port: u16 },
    Unix { directory: String, port: u16 },
}

impl ServerHost {
    fn new(name: &str, port: u16) -> Self {
        if name.starts_with('/') {
            Self::Unix {
                directory: name.to_owned(),
                port,
            }
        } else {
            Self::Tcp {
                name: name.to_owned(),
                port,
            }
        }
    }

    pub(super) fn port(&self) -> u16 {
        match self {
            Self::Tcp { port, .. } | Self::Unix { port, .. } => *port,
        }
    }
}

impl fmt::Display for ServerHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { name, port } => write!(f, "{name}:{port}"),
            Self::Unix { directory, port } => write!(f, "{directory}/.s.PGSQL.{port}"),
        }
    }
}

/// A password: never shown.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(pub(super) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Everything that a URL and its surroundings say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectionTarget {
    pub(super) hosts: Vec<ServerHost>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
    pub(super) passfile: Option<PathBuf>,
    pub(super) dbname: Option<String>,
    pub(super) options: Option<String>,
    pub(super) application_name: String,
    pub(super) connect_timeout: Duration,
    pub(super) tls: TlsSettings,
    pub(super) names: TableNames,
    /// The URL without secrets.
    pub(super) shown: String,
}

impl ConnectionTarget {
    /// Reads a URL, with what the environment adds to it.
    pub(super) fn parse(url: &str) -> Result<Self, StoreError> {
        Self::parse_with(url, &|name| std::env::var(name).ok())
    }

    fn parse_with(url: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, StoreError> {
        let bad = |reason: &str| {
            let shown = crate::url::redacted(url);
            StoreError::denied(format!("store URL {shown:?} {reason}"))
        };
        let rest = ["postgres://", "postgresql://"]
            .iter()
            .find_map(|scheme| url.strip_prefix(scheme))
            .ok_or_else(|| bad("is incomplete; write postgres://USER@HOST:PORT/DATABASE"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut given = parameters(query).map_err(|reason| bad(&reason))?;
        let (authority, dbname) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = authority.rsplit_once('@').unwrap_or(("", authority));
        let (user, password) = match login.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (login, None),
        };
        let text = |part: &str| {
            decode(part).ok_or_else(|| bad("has a % that is not followed by two hexadecimal digits, or that does not encode UTF-8"))
        };
        let mut or_given = |part: &str, name: &str| -> Result<Option<String>, StoreError> {
            let given = given.remove(name);
            Ok(match part {
                "" => given,
                part => Some(text(part)?),
            })
        };
        let user = or_given(user, "user")?.or_else(|| env("PGUSER"));
        let password = or_given(password.unwrap_or_default(), "password")?;
        let password = password.or_else(|| env("PGPASSWORD")).map(Secret);
        let dbname = or_given(dbname, "dbname")?;
        let (host, port) = (given.remove("host"), given.remove("port"));
        let hosts = parse_hosts(hosts, host.as_deref(), port.as_deref()).map_err(|w| bad(&w))?;
        let timeout = match given.remove("connect_timeout").map(|s| s.parse::<u64>()) {
            None => CONNECT_TIMEOUT,
            Some(Ok(seconds)) if seconds > 0 => Duration::from_secs(seconds),
            Some(_) => return Err(bad("has a connect_timeout that is not a number of seconds")),
        };
        let names = TableNames::new(
            given.remove("schema").as_deref(),
            given.remove("table").as_deref(),
        )?;
        let tls = tls_wish(&mut given, env).map_err(|reason| bad(&reason))?;
        let passfile = given.remove("passfile").or_else(|| env("PGPASSFILE"));
        let mut target = Self {
            hosts,
            user,
            password,
            passfile: passfile.map(PathBuf::from),
            dbname,
            options: given.remove("options"),
            application_name: given
                .remove("application_name")
                .unwrap_or_else(|| "tenure".to_owned()),
            connect_timeout: timeout,
            tls,
            names,
            shown: String::new(),
        };
        target.shown = target.show();
        Ok(target)
    }

    fn show(&self) -> String {
        let mut shown = "postgres://".to_owned();
        if let Some(user) = &self.user {
            shown.push_str(user);
            shown.push('@');
        }
        let hosts: Vec<String> = self.hosts.iter().map(ServerHost::to_string).collect();
        shown.push_str(&hosts.join(","));
        shown.push('/');
        shown.push_str(self.dbname.as_deref().unwrap_or_default());
        let parts = [
            ("schema", &self.names.schema, TableNames::SCHEMA),
            ("table", &self.names.table, TableNames::TABLE),
        ];
        let mut mark = '?';
        for (name, value, default) in parts {
            if value != default {
                shown.push_str(&format!("{mark}{name}={value}"));
                mark = '&';
            }
        }
        shown
    }

    /// The password for a host: from the URL, the environment, or the file of passwords.
    pub(super) fn password_for(&self, host: &ServerHost) -> Option<Secret> {
        self.password.clone().or_else(|| {
            let user = self.user.as_deref()?;
            let database = self.dbname.as_deref().unwrap_or(user);
            pgpass::look_up(self.passfile.as_deref(), host, database, user).map(Secret)
        })
    }
}

fn parameters(query: &str) -> Result<BTreeMap<String, String>, String> {
    let mut given = BTreeMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let name = decode(name).ok_or(
            "has a % that is not followed by two hexadecimal digits, or that does not encode UTF-8",
        )?;
        let value = decode(value).ok_or(
            "has a % that is not followed by two hexadecimal digits, or that does not encode UTF-8",
        )?;
        if name == "target_session_attrs" && ["any", "read-write", "primary"].contains(&&*value) {
            // What a store can work with anyway.
            continue;
        }
        if !KNOWN.contains(&&*name) {
            let known = KNOWN.join(", ");
            return Err(format!(
                "has the unknown parameter {name:?}; use one of: {known}"
            ));
        }
        given.insert(name, value);
    }
    Ok(given)
}

fn parse_hosts(
    authority: &str,
    hosts: Option<&str>,
    ports: Option<&str>,
) -> Result<Vec<ServerHost>, String> {
    let number = |port: &str| match port {
        "" => Ok(DEFAULT_PORT),
        port => port
            .parse()
            .map_err(|_| format!("has the port {port:?}, which is not a number below 65536")),
    };
    if authority.is_empty() {
        let ports: Vec<&str> = ports.unwrap_or_default().split(',').collect();
        let hosts = hosts.unwrap_or("localhost").split(',').enumerate();
        return hosts
            .map(|(n, host)| {
                let port = ports.get(n).or(ports.first()).copied().unwrap_or_default();
                Ok(ServerHost::new(host, number(port)?))
            })
            .collect();
    }
    if hosts.is_some() || ports.is_some() {
        return Err("names a host or port twice; remove the host and port parameters after the question mark".to_owned());
    }
    let one = |part: &str| {
        let (host, port) = match part.strip_prefix('[').and_then(|p| p.split_once(']')) {
            Some((host, port)) => (host, port.strip_prefix(':').unwrap_or(port)),
            None => part.rsplit_once(':').unwrap_or((part, "")),
        };
        let host = decode(host).ok_or(
            "has a % that is not followed by two hexadecimal digits, or that does not encode UTF-8",
        )?;
        let host = if host.is_empty() { "localhost" } else { &host };
        Ok(ServerHost::new(host, number(port)?))
    };
    authority.split(',').map(one).collect()
}

fn tls_wish(
    given: &mut BTreeMap<String, String>,
    env: &dyn Fn(&str) -> Option<String>,
) -> Result<TlsSettings, String> {
    let mut take = |name: &str| {
        let value = given.remove(name);
        value.or_else(|| env(&format!("PG{}", name.to_uppercase())))
    };
    let (mode, root) = (take("sslmode"), take("sslrootcert"));
    let (cert, key) = (take("sslcert"), take("sslkey"));
    let mode = match mode.as_deref() {
        // As libpq does: the system's certificates are worth nothing if the name is not checked.
        None if root.as_deref() == Some("system") => TlsMode::VerifyFull,
        Some("disable") => TlsMode::Disable,
        None | Some("prefer") => TlsMode::Prefer,
        Some("require") => TlsMode::Require,
        Some("verify-ca") => TlsMode::VerifyCa,
        Some("verify-full") => TlsMode::VerifyFull,
        Some(other) => {
            return Err(format!(
                "has the unknown sslmode {other:?}; use disable, prefer, require, verify-ca or verify-full"
            ));
        }
    };
    let client = match (cert, key) {
        (None, None) => None,
        (Some(cert), Some(key)) => Some((PathBuf::from(cert), PathBuf::from(key))),
        _ => return Err("names only one of sslcert and sslkey; name both".to_owned()),
    };
    Ok(TlsSettings { mode, root, client })
}

/// Undoes %-escapes; `None` if they are broken or hide no UTF-8.
fn decode(text: &str) -> Option<String> {
    undo_escapes(text, b'%')
}

#[cfg(test)]
#[path = "url_tests.rs"]
mod tests;
