use std::io::Write as _;

use tenure_core::plan::PlanSettings;
use tenure_core::record::PlanningSettings;

use super::*;

/// Two values that differ from the default and from each other, as the file and as text would have them.
fn samples(knob: &SettingDefinition) -> [(&'static str, &'static str); 3] {
    match (knob.name, &knob.kind) {
        (_, SettingKind::Time(..) | SettingKind::PlanTime(_)) => {
            [("\"7s\"", "7s"), ("\"8s\"", "8s"), ("\"9s\"", "9s")]
        }
        (
            _,
            SettingKind::Count(..)
            | SettingKind::Weight
            | SettingKind::Limit
            | SettingKind::PlanCount(_),
        ) => [("7", "7"), ("8", "8"), ("9", "9")],
        (_, SettingKind::Seconds) => [("7", "7s"), ("8", "8s"), ("9.5", "9500ms")],
        (_, SettingKind::OnOff) => [("false", "false"), ("true", "true"), ("false", "false")],
        // Two values are all there are: the third is the first again.
        (_, SettingKind::YesNo) => [("true", "true"), ("false", "false"), ("true", "true")],
        (_, SettingKind::Rejoin) => [
            ("\"manual\"", "manual"),
            ("\"auto\"", "auto"),
            ("\"manual\"", "manual"),
        ],
        (_, SettingKind::Switch(..)) => [("false", "false"), ("true", "true"), ("false", "false")],
        ("store", _) => [
            ("\"sqlite:a.db\"", "sqlite:a.db"),
            ("\"sqlite:b.db\"", "sqlite:b.db"),
            ("\"sqlite:c.db\"", "sqlite:c.db"),
        ],
        ("policy", _) => [
            ("\"sticky\"", "sticky"),
            ("\"rendezvous\"", "rendezvous"),
            ("\"jump\"", "jump"),
        ],
        // Two values are all there are here, too.
        ("balance_by", _) => [
            ("\"cost\"", "cost"),
            ("\"shards\"", "shards"),
            ("\"cost\"", "cost"),
        ],
        ("zones", _) => [
            ("\"spread:40\"", "spread:40"),
            ("\"prefer:a,b\"", "prefer:a,b"),
            ("\"any\"", "any"),
        ],
        ("labels" | "required_labels", _) => [
            ("\"a=1\"", "a=1"),
            ("\"a=2,b=3\"", "a=2,b=3"),
            ("\"c=4\"", "c=4"),
        ],
        ("admin_addr", _) => [("\":7\"", ":7"), ("\":8\"", ":8"), ("\":9\"", ":9")],
        ("log", _) => [
            ("\"info\"", "info"),
            ("\"debug\"", "debug"),
            ("\"trace\"", "trace"),
        ],
        _ => [("\"a\"", "a"), ("\"b\"", "b"), ("\"c\"", "c")],
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn given(config: &Config, knob: &SettingDefinition) -> Option<(String, ValueSource)> {
    let (value, source) = config.given.get(knob.name)?;
    Some((value.to_string(), source.clone()))
}

/// What reaches the settings, for those knobs that are settings.
fn in_settings(config: &Config, knob: &SettingDefinition) -> Option<String> {
    let settings = config.settings();
    // A ttl so long that no relation is broken by a single value; only reading back matters here.
    let timing = match settings.check(Duration::ZERO) {
        Ok(timing) => timing,
        Err(_) => Settings {
            ttl: Duration::from_secs(3600),
            renew_retry_interval: settings.renew_retry_interval,
            tick_interval: settings.tick_interval.map(|_| Duration::from_secs(3600)),
            ..settings.clone()
        }
        .check(Duration::ZERO)
        .ok()?,
    };
    default_of(knob, &timing).map(|value| value.to_string())
}

#[test]
fn file_environment_and_flag_each_take_effect_for_every_knob_and_in_this_order() {
    for knob in KNOBS {
        let [(toml, in_file), (_, in_env), (_, in_flag)] = samples(knob);
        let file = file(&format!("{} = {toml}\n", knob.name));
        let mut sources = ConfigSources {
            files: vec![file.path().to_owned()],
            ..ConfigSources::default()
        };
        let load = |sources: &ConfigSources| given(&Config::load(sources).unwrap(), knob);
        assert_eq!(
            load(&sources),
            Some((in_file.into(), ValueSource::File)),
            "{}",
            knob.name
        );
        sources.env.push((knob.env(), in_env.into()));
        assert_eq!(
            load(&sources),
            Some((in_env.into(), ValueSource::Env)),
            "{}",
            knob.name
        );
        sources.flags.insert(knob.name, in_flag.into());
        assert_eq!(
            load(&sources),
            Some((in_flag.into(), ValueSource::Flag)),
            "{}",
            knob.name
        );
    }
}

#[test]
fn every_knob_of_the_settings_reaches_its_own_setting_and_no_other() {
    for knob in KNOBS {
        if !matches!(
            knob.kind,
            SettingKind::Time(..) | SettingKind::Count(..) | SettingKind::Switch(..)
        ) {
            continue;
        }
        let [_, (_, text), _] = samples(knob);
        let text = match knob.kind {
            SettingKind::Switch(..) => "false",
            _ => text,
        };
        let sources = ConfigSources {
            flags: BTreeMap::from([(knob.name, text.to_owned())]),
            ..ConfigSources::default()
        };
        let changed = Config::load(&sources).unwrap();
        assert_ne!(changed.settings(), Settings::default(), "{}", knob.name);
        let shown = Debugged::of(&changed.settings());
        let different = shown.fields_that_differ(&Debugged::of(&Settings::default()));
        assert_eq!(different, [knob.name]);
        if let Some(value) = in_settings(&changed, knob) {
            assert_eq!(value, text, "{}", knob.name);
        }
    }
}

/// What a single flag makes of the way in which a keyspace is planned.
fn planned(name: &'static str, text: &str) -> PlanningSettings {
    let flags = BTreeMap::from([(name, text.to_owned())]);
    let sources = ConfigSources {
        flags,
        ..ConfigSources::default()
    };
    Config::load(&sources).unwrap().plan().unwrap()
}

#[test]
fn every_knob_of_planning_reaches_its_own_setting_is_shown_as_given_and_can_be_unset() {
    for knob in KNOBS.iter().filter(|knob| knob.is_plan()) {
        let text = match knob.name {
            "balance_by" => "cost",
            _ => samples(knob)[1].1,
        };
        let mut spec = planned(knob.name, text);
        assert_eq!(planning::shown(&spec), [(knob.name, text.to_owned())]);
        assert_ne!(spec.settings(), PlanSettings::default(), "{}", knob.name);
        planning::unset(&mut spec, knob.name).unwrap();
        assert_eq!(spec, PlanningSettings::default(), "{}", knob.name);
    }
    assert_eq!(
        planning::unset(&mut PlanningSettings::default(), "ttl"),
        None
    );
}

#[test]
fn the_defaults_of_planning_are_those_of_the_planner() {
    for knob in KNOBS.iter().filter(|knob| knob.is_plan()) {
        if let Some(text) = knob.default_text() {
            let settings = planned(knob.name, text).settings();
            assert_eq!(settings, PlanSettings::default(), "{}", knob.name);
        }
    }
}

/// Settings by field, without naming the fields a second time.
struct Debugged(Vec<String>);

impl Debugged {
    fn of(settings: &Settings) -> Self {
        let text = format!("{settings:#?}");
        // One line per field once nested values are folded into their field's line.
        let mut fields: Vec<String> = Vec::new();
        for line in text.lines() {
            if line.starts_with("    ") && !line.starts_with("     ") && line.contains(": ") {
                fields.push(line.trim().to_owned());
            } else if let Some(last) = fields.last_mut() {
                last.push_str(line.trim());
            }
        }
        Self(fields)
    }

    fn fields_that_differ(&self, other: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&other.0).filter(|(a, b)| a != b);
        pairs
            .filter_map(|(a, _)| Some(a.split_once(':')?.0.to_owned()))
            .collect()
    }
}

#[test]
fn every_setting_has_a_knob() {
    let fields = Debugged::of(&Settings::default());
    for field in &fields.0 {
        let name = field.split_once(':').unwrap().0;
        assert!(settings_table::find(name).is_some(), "{name}");
    }
}

fn problems(file_text: &str, env: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Vec<String> {
    let file = file(file_text);
    let sources = ConfigSources {
        set: BTreeSet::new(),
        files: vec![file.path().to_owned()],
        env: env
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        flags: flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
    };
    Config::load(&sources).unwrap_err()
}

#[test]
fn every_problem_of_every_source_is_reported_at_once() {
    let all = problems(
        "tll = \"3s\"\nttl = 3\nweight = \"x\"\nclaim_watch_enabled = 1\nlisten = \"x\"\n",
        &[
            ("TENURE_RENEW_INTERVAL", "3"),
            ("TENURE_STROE", "x"),
            ("TENURE_WEIGHT", "-1"),
        ],
        &[
            ("store", "redis://u:hunter2@h/"),
            ("admin_addr", "9464x"),
            ("log", "a=b=c"),
            ("cluster", ""),
        ],
    );
    let text = all.join("\n");
    for wanted in [
        "unknown key \"tll\"; did you mean \"ttl\"?",
        "ttl: 3 has type integer; expected a duration in quotes",
        "weight: \"x\" has type string",
        "claim_watch_enabled: 1 has type integer",
        "unknown key \"listen\"; `tenure config show` lists all settings",
        "TENURE_RENEW_INTERVAL: \"3\" is not a duration: the unit is missing",
        "unknown environment variable TENURE_STROE; did you mean TENURE_STORE?",
        "TENURE_WEIGHT: \"-1\" is not a whole number",
        "--store: store URL \"redis://…@h/\" has the unknown scheme",
        "--admin-addr: \"9464x\" is not an address",
        "--log: \"a=b=c\" is not a filter",
        "--cluster: cluster name \"\" is empty",
    ] {
        assert!(text.contains(wanted), "{wanted}\n--- in\n{text}");
    }
    assert_eq!(all.len(), 12, "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn a_file_that_is_missing_or_is_not_toml_is_named() {
    let sources = ConfigSources {
        files: vec![PathBuf::from("nowhere/shop.toml")],
        ..ConfigSources::default()
    };
    let all = Config::load(&sources).unwrap_err();
    assert!(
        all[0].contains("nowhere/shop.toml cannot be read"),
        "{all:?}"
    );
    let all = problems("ttl = = 3", &[], &[]);
    assert!(
        all[0].contains("is not TOML") && all[0].contains("line 1"),
        "{all:?}"
    );
}

#[test]
fn files_are_found_by_flag_then_environment_then_at_their_usual_places() {
    let (one, two) = (file("zone = \"one\""), file("zone = \"two\""));
    let zone = |sources: &ConfigSources| {
        let config = Config::load(sources).unwrap();
        config.text("zone").map(ToOwned::to_owned)
    };
    let home = tempfile::tempdir().unwrap();
    let user = home.path().join(".config/tenure");
    std::fs::create_dir_all(&user).unwrap();
    std::fs::write(user.join("config.toml"), "zone = \"user\"\n").unwrap();
    let find = |env: &[(&str, &str)], flag: Option<&std::path::Path>| {
        let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        let flag = flag.map(ToOwned::to_owned);
        ConfigSources::new(BTreeMap::new(), BTreeSet::new(), env.collect(), flag)
    };
    let at_home = ("HOME", home.path().to_str().unwrap());
    let by_env = (ENV_FILE, one.path().to_str().unwrap());
    assert_eq!(zone(&find(&[at_home], None)), Some("user".to_owned()));
    let xdg = home.path().join("elsewhere");
    let xdg = ("XDG_CONFIG_HOME", xdg.to_str().unwrap());
    assert_eq!(zone(&find(&[at_home, xdg], None)), None);
    assert_eq!(
        zone(&find(&[at_home, by_env], None)),
        Some("one".to_owned())
    );
    let flagged = find(&[at_home, by_env], Some(two.path()));
    assert_eq!(zone(&flagged), Some("two".to_owned()));
    assert_eq!(zone(&find(&[at_home, (ENV_FILE, "")], None)), None);
    assert_eq!(zone(&find(&[at_home, by_env], Some("".as_ref()))), None);
    let layered = ConfigSources {
        files: vec![one.path().to_owned(), two.path().to_owned()],
        ..ConfigSources::default()
    };
    assert_eq!(
        zone(&layered),
        Some("two".to_owned()),
        "the later file wins"
    );
}

#[test]
fn settings_that_do_not_fit_together_are_named_with_their_source() {
    let config = |flags: &[(&'static str, &str)]| {
        Config::load(&ConfigSources {
            flags: flags.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
            ..ConfigSources::default()
        })
        .unwrap()
    };
    let all = config(&[("renew_interval", "2s"), ("kill_grace", "2s")])
        .timing()
        .unwrap_err();
    let text = all.join("\n");
    assert!(
        text.contains("renew_interval") && text.contains("(from flag)"),
        "{text}"
    );
    assert!(text.contains("lease_detach_margin"), "{text}");

    let all = config(&[("ttl", "100ms"), ("store", "sqlite:x.db")])
        .timing()
        .unwrap_err();
    assert!(
        all[0].contains("below this store's minimum of 200ms"),
        "{all:?}"
    );
}

#[test]
fn what_is_shown_holds_no_secret() {
    let mut config = Config::default();
    let url = SettingValue::Text("postgres://u:hunter2@h/x?password=hunter2".to_owned());
    config.given.insert("store", (url, ValueSource::Flag));
    let timing = config.timing().unwrap();
    let shown: Vec<String> = config
        .effective(&timing)
        .iter()
        .filter_map(|e| e.value.as_ref().map(ToString::to_string))
        .collect();
    assert!(!shown.join(" ").contains("hunter2"), "{shown:?}");
    assert_eq!(shown[0], "postgres://…@h/x?…");
}

#[test]
fn what_does_not_fit_together_is_told_along_with_what_cannot_be_read() {
    let sources = ConfigSources {
        flags: [
            ("ttl", "100ms"),
            ("store", "sqlite:x.db"),
            ("drain_timeout", "3"),
        ]
        .map(|(k, v)| (k, v.to_owned()))
        .into(),
        ..ConfigSources::default()
    };
    let all = Config::check(&sources).unwrap_err();
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(
        all[0].contains("--drain-timeout: \"3\" is not a duration"),
        "{all:?}"
    );
    assert!(all[1].contains("below this store's minimum"), "{all:?}");
}

#[test]
fn the_section_of_a_worker_says_the_same_as_its_settings() {
    use tenure_queue::{ENV_ENABLED, ENV_RENEW, ENV_SHARDS, ENV_TTL, OwnershipSettings};

    let text = "[worker.ownership]\nenabled = false\nshards_per_worker = 4\n\
        ttl_secs = 30\nrenew_interval_secs = 2.5\n";
    let section = file(text);
    let by_file = ConfigSources {
        files: vec![section.path().to_owned()],
        ..ConfigSources::default()
    };
    let pairs = [
        (ENV_ENABLED, "0"),
        (ENV_SHARDS, "4"),
        (ENV_TTL, "30"),
        (ENV_RENEW, "2.5"),
    ];
    let by_env = ConfigSources {
        env: pairs.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec(),
        ..ConfigSources::default()
    };
    let wanted = OwnershipSettings {
        enabled: false,
        shards_per_worker: Some(4),
        ttl_secs: Some(30.0),
        renew_interval_secs: Some(2.5),
    };
    for sources in [by_file, by_env] {
        assert_eq!(Config::load(&sources).unwrap().leasing(), wanted);
    }
    let nothing = Config::load(&ConfigSources::default()).unwrap();
    assert_eq!(nothing.leasing(), OwnershipSettings::default());
    let odd = file("[worker]\nshards = 3\n[worker.ownership]\nttl = 3\nenabled = 1\n");
    let sources = ConfigSources {
        files: vec![odd.path().to_owned()],
        ..ConfigSources::default()
    };
    let told = Config::load(&sources).unwrap_err().join("\n");
    for part in ["worker.shards", "worker.ownership.ttl", "enabled"] {
        assert!(told.contains(part), "{part} is not in {told}");
    }
}
