//! The file of passwords, `~/.pgpass`, as libpq reads it.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::url::ServerHost;

/// The password for a user of a database on a host, if the file has one.
///
/// A file that others may read is not used, as it is with libpq.
pub(super) fn look_up(
    named: Option<&Path>,
    host: &ServerHost,
    database: &str,
    user: &str,
) -> Option<String> {
    let path: PathBuf = match named {
        Some(path) => path.to_owned(),
        None => std::env::home_dir()?.join(".pgpass"),
    };
    let metadata = fs::metadata(&path).ok()?;
    if !metadata.is_file() {
        return None;
    }
    if metadata.mode() & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "password file ignored: other users can read it; set its mode to 0600");
        return None;
    }
    let text = fs::read_to_string(&path).ok()?;
    let (name, port) = match host {
        ServerHost::Tcp { name, .. } => (name.as_str(), host.port()),
        ServerHost::Unix { .. } => ("localhost", host.port()),
    };
    let wanted = [name, &port.to_string(), database, user];
    text.lines().find_map(|line| matched(line, &wanted))
}

fn matched(line: &str, wanted: &[&str; 4]) -> Option<String> {
    if line.starts_with('#') {
        return None;
    }
    let mut fields = fields(line).into_iter();
    for wanted in wanted {
        let field = fields.next()?;
        if field != "*" && field != *wanted {
            return None;
        }
    }
    fields.next()
}

/// The fields of a line; a backslash takes the meaning from the character after it.
fn fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut chars = line.chars();
    while let Some(c) = chars.next() {
        let c = match c {
            ':' => {
                fields.push(String::new());
                continue;
            }
            '\\' => chars.next().unwrap_or('\\'),
            c => c,
        };
        if let Some(last) = fields.last_mut() {
            last.push(c);
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn the_first_line_that_fits_counts_and_a_readable_file_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pgpass");
        let lines =
            "# comment\ndb:5433:shop:ann:wrong port\ndb:5432:*:ann:a\\:b\\\\c\n*:*:*:*:rest\n";
        fs::write(&path, lines).unwrap();
        let host = ServerHost::Tcp {
            name: "db".to_owned(),
            port: 5432,
        };
        let find = |user| look_up(Some(&path), &host, "shop", user);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(find("ann"), None);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(find("ann").as_deref(), Some("a:b\\c"));
        assert_eq!(find("bob").as_deref(), Some("rest"));
    }
}
