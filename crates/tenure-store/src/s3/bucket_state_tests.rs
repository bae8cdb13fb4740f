use super::*;
use std::time::Duration;

fn seen(etag: &str) -> SeenObject {
    SeenObject {
        etag: etag.into(),
        value: Some((*b"v").into()),
        deleted: false,
    }
}

fn deleted(etag: &str) -> SeenObject {
    SeenObject {
        etag: etag.into(),
        value: None,
        deleted: true,
    }
}

fn keys(batch: Option<ChangeBatch>) -> Vec<String> {
    let changes = batch.into_iter().flat_map(|batch| batch.changes);
    changes.map(|change| change.key().to_owned()).collect()
}

fn there(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[test]
fn only_what_differs_moves_the_revision() {
    let mut state = BucketState::default();
    state.learned("", None);
    let start = state.revision();
    state.apply("a", seen("1"), None);
    state.apply("b", seen("1"), None);
    let two = state.revision();
    assert!(two > start);
    state.apply("a", seen("1"), None);
    state.retain("", &there(&["a", "b"]), None);
    assert_eq!(state.revision(), two);
    assert_eq!(keys(state.changes("", start).unwrap()), ["a", "b"]);
    state.apply("a", seen("2"), None);
    assert_eq!(keys(state.changes("", two).unwrap()), ["a"]);
    assert_eq!(keys(state.changes("b", two).unwrap()), [""; 0]);
}

#[test]
fn a_deletion_is_told_once_whether_it_left_a_mark_or_not() {
    let mut state = BucketState::default();
    state.learned("", None);
    for key in ["a", "b"] {
        state.apply(key, seen("1"), None);
    }
    let from = state.revision();
    state.apply("a", deleted("2"), None);
    state.retain("", &there(&["a"]), None);
    let gone = state.revision();
    assert_eq!(keys(state.changes("", from).unwrap()), ["a", "b"]);
    assert!(state.entries("").is_empty());
    // The mark is collected, and another one appears of a key that nobody has seen: nothing has changed.
    state.retain("", &there(&[]), None);
    state.apply("c", deleted("1"), None);
    assert_eq!(state.revision(), gone);
    assert_eq!(keys(state.changes("", from).unwrap()), ["a", "b"]);
    state.apply("a", seen("3"), None);
    assert_eq!(keys(state.changes("", gone).unwrap()), ["a"]);
}

#[test]
fn a_revision_that_was_never_given_out_or_is_forgotten_is_a_gap() {
    let mut state = BucketState::default();
    state.learned("", None);
    let start = state.revision();
    assert_eq!(state.changes("", Revision(start.0 + 1)), Err(WatchEnd::Gap));
    for n in 0..=TOMBSTONES_KEPT {
        state.apply(&n.to_string(), seen("1"), None);
    }
    let full = state.revision();
    state.retain("", &there(&[]), None);
    assert_eq!(state.changes("", full), Err(WatchEnd::Gap));
    assert_eq!(state.changes("", state.revision()), Ok(None));
}

#[test]
fn revisions_are_times_of_the_store_and_never_go_back() {
    let date = |s| Some(UNIX_EPOCH + Duration::from_secs(s));
    let mut state = BucketState::default();
    state.learned("", date(100));
    assert_eq!(state.revision(), Revision(100_000_000));
    state.apply("a", seen("1"), date(100));
    assert_eq!(state.revision(), Revision(100_000_001));
    state.apply("a", seen("2"), date(200));
    state.apply("a", seen("3"), date(50));
    assert_eq!(state.revision(), Revision(200_000_001));
}

#[test]
fn what_was_written_here_need_not_be_read() {
    let hub = SharedBucket::new();
    hub.lock().watch("a/");
    let (etag, value): (Arc<str>, Arc<[u8]>) = ("1".into(), (*b"v").into());
    hub.wrote("a/k", &etag, &value);
    hub.wrote("b/k", &etag, &value);
    let complete = |key: &str, etag: &str| hub.lock().complete(key, etag.into(), false).value;
    assert_eq!(complete("a/k", "1"), Some(value));
    assert_eq!(complete("a/k", "2"), None);
    assert_eq!(complete("b/k", "1"), None, "nobody watches it");
}

#[test]
fn what_no_list_will_show_any_more_is_not_remembered_for_ever() {
    let hub = SharedBucket::new();
    hub.lock().watch("a/");
    hub.lock().watch("b/");
    let (etag, value): (Arc<str>, Arc<[u8]>) = ("1".into(), (*b"v").into());
    let remembered = || {
        let mut keys: Vec<String> = hub.lock().written.keys().cloned().collect();
        keys.sort_unstable();
        keys
    };
    for key in ["a/overwritten", "a/gone", "a/seen", "b/k"] {
        hub.wrote(key, &etag, &value);
    }
    let list = |state: &mut BucketState| {
        state.apply("a/overwritten", seen("2"), None);
        state.apply("a/seen", seen("1"), None);
        state.retain("a/", &there(&["a/overwritten", "a/seen"]), None);
    };
    // The first list may have begun before they were written.
    list(&mut hub.lock());
    assert_eq!(remembered(), ["a/gone", "a/overwritten", "b/k"]);
    list(&mut hub.lock());
    assert_eq!(remembered(), ["b/k"]);
    hub.lock().unwatch("b/");
    assert_eq!(remembered(), [""; 0]);
}

#[test]
fn prefixes_that_nobody_asked_for_again_are_forgotten_and_the_revision_says_so() {
    let mut state = BucketState::default();
    state.watch("first/");
    state.learned("first/", None);
    state.apply("first/k", seen("1"), None);
    for n in 0..LISTED_KEPT {
        state.learned(&format!("{n:02}/"), None);
    }
    state.apply("00/k", seen("1"), None);
    let before = state.revision();
    state.learned("again/", None);
    assert!(state.revision() > before);
    assert_eq!(state.known_since("00/"), None);
    assert!(state.entries("00/").is_empty());
    assert_eq!(state.entries("first/").len(), 1);
}

#[test]
fn a_look_at_everything_ends_with_the_first_prefix_and_gives_it_its_past() {
    let mut state = BucketState::default();
    state.learned_whole(None);
    let start = state.revision();
    for key in ["a/k", "b/k"] {
        state.apply(key, seen("1"), None);
    }
    state.learned("a/", None);
    assert_eq!(state.known_since("a/"), Some(start.0));
    assert_eq!(state.known_since("b/"), None);
    assert_eq!(keys(state.changes("", start).unwrap()), ["a/k"]);
    assert_eq!(state.to_compare(), ["a/"]);
}

#[test]
fn of_prefixes_within_each_other_the_shortest_is_walked() {
    let all = ["a/b/", "a/", "c", "ab/", "a/c/"];
    assert_eq!(shortest(all.into_iter()), ["a/", "ab/", "c"]);
    assert_eq!(shortest(["", "x"].into_iter()), [""]);
}
