//! The two files of the `aws` command: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::StoreError;

const DEFAULT: &str = "default";
/// Ways to come by a key that need more than these files.
const ELSEWHERE: [&str; 4] = [
    "credential_process",
    "sso_session",
    "sso_start_url",
    "role_arn",
];

/// A key and its secret. Not printed.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) id: String,
    pub(super) secret: String,
    pub(super) token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(…)")
    }
}

/// What the files say of one profile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AwsProfile {
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) keys: Option<Keys>,
}

/// Reads the profile that is named, by the URL or by `AWS_PROFILE`, or else the one called `default`, if there is one.
///
/// The file of credentials may be named, too; it must then have the profile.
pub(super) fn load(
    named: &Option<String>,
    credentials: &Option<String>,
    variable: &impl Fn(&str) -> Option<String>,
) -> Result<Option<AwsProfile>, StoreError> {
    let named = named.clone().or_else(|| variable("AWS_PROFILE"));
    let file = |name: &str, usual: &str| -> Option<PathBuf> {
        let own = || Some(Path::new(&variable("HOME")?).join(".aws").join(usual));
        variable(name).map(PathBuf::from).or_else(own)
    };
    let name = named.as_deref().unwrap_or(DEFAULT);
    let mut found: Option<Section> = None;
    let files = [
        (file("AWS_CONFIG_FILE", "config"), true),
        (
            credentials
                .as_ref()
                .map(PathBuf::from)
                .or_else(|| file("AWS_SHARED_CREDENTIALS_FILE", "credentials")),
            false,
        ),
    ];
    for (path, is_config) in &files {
        let Some(text) = path.as_deref().map(read).transpose()?.flatten() else {
            continue;
        };
        if let Some(section) = section(&text, name, *is_config) {
            found.get_or_insert_default().extend(section);
        }
    }
    let must_be = named.is_some() || credentials.is_some();
    match (found, must_be) {
        (Some(section), _) => profile(name, section).map(Some),
        (None, false) => Ok(None),
        (None, true) => {
            let places: Vec<String> = files
                .iter()
                .filter_map(|(path, _)| Some(path.as_ref()?.display().to_string()))
                .collect();
            Err(StoreError::denied(format!(
                "AWS profile {name:?} is neither in {}; check AWS_PROFILE, or profile= and credentials= in the store URL",
                places.join(" nor in ")
            )))
        }
    }
}

fn read(path: &Path) -> Result<Option<String>, StoreError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(StoreError::denied(format!(
            "AWS file {} cannot be read: {e}; check its permissions",
            path.display()
        ))),
    }
}

type Section = BTreeMap<String, String>;

/// The settings under `[NAME]`, in the config file under `[profile NAME]`.
fn section(text: &str, name: &str, is_config: bool) -> Option<Section> {
    let mut found: Option<Section> = None;
    let mut inside = false;
    for line in text.lines() {
        if let Some(title) = line.trim().strip_prefix('[') {
            let title = title.split(']').next().unwrap_or_default().trim();
            inside = match title.strip_prefix("profile ") {
                Some(title) if is_config => title.trim() == name,
                _ => title == name && (!is_config || name == DEFAULT),
            };
            if inside {
                found.get_or_insert_default();
            }
            continue;
        }
        // What is indented belongs to a setting of its own, and is none of ours.
        let nested = line.starts_with([' ', '\t']);
        if !inside || nested || line.starts_with(['#', ';']) {
            continue;
        }
        if let (Some((key, value)), Some(found)) = (line.split_once('='), &mut found) {
            let value = value.split(" #").next().unwrap_or_default();
            found.insert(key.trim().to_lowercase(), value.trim().to_owned());
        }
    }
    found
}

fn profile(name: &str, mut section: Section) -> Result<AwsProfile, StoreError> {
    let mut take = |key: &str| section.remove(key).filter(|value| !value.is_empty());
    let (id, secret) = (take("aws_access_key_id"), take("aws_secret_access_key"));
    let token = take("aws_session_token");
    let (region, endpoint) = (take("region"), take("endpoint_url"));
    let keys = match (id, secret) {
        (Some(id), Some(secret)) => Some(Keys { id, secret, token }),
        (None, None) => None,
        _ => {
            return Err(StoreError::denied(format!(
                "AWS profile {name:?} has only one of aws_access_key_id and aws_secret_access_key; give both"
            )));
        }
    };
    if keys.is_none()
        && let Some(way) = ELSEWHERE.into_iter().find(|way| section.contains_key(*way))
    {
        return Err(StoreError::denied(format!(
            "AWS profile {name:?} gets its keys by {way}, which is not supported here; run `aws configure export-credentials \
             --profile {name} --format env` and set what it prints"
        )));
    }
    Ok(AwsProfile {
        region,
        endpoint,
        keys,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1\n[profile shop]\nregion=eu-central-1 # Frankfurt\ns3 =\n  \
                          addressing_style = path\nendpoint_url = https://s3.example\n[profile away]\nsso_session = x\n";
    const CREDENTIALS: &str = "# ours\n[default]\naws_access_key_id = AKIA\naws_secret_access_key = s1\n[shop]\n\
                               aws_access_key_id=AKIB\naws_secret_access_key=s2\naws_session_token=t\n[half]\n\
                               aws_access_key_id=AKIC\n";

    fn loaded(name: Option<&str>) -> Result<Option<AwsProfile>, StoreError> {
        let dir = tempfile::tempdir().unwrap();
        let (config, credentials) = (dir.path().join("config"), dir.path().join("credentials"));
        std::fs::write(&config, CONFIG).unwrap();
        std::fs::write(&credentials, CREDENTIALS).unwrap();
        load(
            &name.map(str::to_owned),
            &None,
            &|variable| match variable {
                "AWS_CONFIG_FILE" => Some(config.display().to_string()),
                "AWS_SHARED_CREDENTIALS_FILE" => Some(credentials.display().to_string()),
                _ => None,
            },
        )
    }

    fn keys(id: &str, secret: &str, token: Option<&str>) -> Option<Keys> {
        Some(Keys {
            id: id.to_owned(),
            secret: secret.to_owned(),
            token: token.map(str::to_owned),
        })
    }

    #[test]
    fn a_profile_is_put_together_from_both_files() {
        let usual = loaded(None).unwrap().unwrap();
        assert_eq!(usual.region.as_deref(), Some("eu-west-1"));
        assert_eq!(usual.keys, keys("AKIA", "s1", None));
        let shop = loaded(Some("shop")).unwrap().unwrap();
        assert_eq!(shop.region.as_deref(), Some("eu-central-1"));
        assert_eq!(shop.endpoint.as_deref(), Some("https://s3.example"));
        assert_eq!(shop.keys, keys("AKIB", "s2", Some("t")));
        assert!(!format!("{shop:?}").contains("s2"));
    }

    #[test]
    fn a_profile_that_cannot_be_used_is_refused_by_name() {
        for (name, wanted) in [
            ("nobody", "neither in"),
            ("half", "give both"),
            ("away", "sso_session"),
        ] {
            let e = loaded(Some(name)).unwrap_err().to_string();
            assert!(e.contains(wanted) && e.contains(name), "{e}");
        }
    }

    #[test]
    fn without_files_there_is_no_profile_unless_one_is_named() {
        assert_eq!(load(&None, &None, &|_| None), Ok(None));
        let some = |text: &str| Some(text.to_owned());
        load(&some("shop"), &None, &|_| None).unwrap_err();
        let e = load(&None, &some("/nowhere/keys"), &|_| None).unwrap_err();
        assert!(e.to_string().contains("/nowhere/keys"), "{e}");
    }
}
