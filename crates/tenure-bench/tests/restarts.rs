//! `tenure-bench restarts` on a small scale, with processes of the `tenure` program.

mod support;

use support::bench;

#[test]
fn restarts_are_measured_beside_a_load_without_them() {
    let load = [
        "restarts",
        "--requests",
        "2000",
        "--rate",
        "200",
        "--nodes",
        "2",
    ];
    let variants = [
        "--variant",
        "none",
        "--variant",
        "drain+hold+load",
        "--json",
    ];
    let report = bench(&[&load[..], &variants].concat()).with(0).json();
    let variants = report["variants"].as_array().unwrap();
    assert_eq!(variants.len(), 2, "{report}");
    assert_eq!(
        (&variants[0]["restarts"], &variants[0]["failed"]),
        (&0.into(), &0.into())
    );
    assert!(variants[1]["restarts"].as_u64().unwrap() >= 2, "{report}");
    for what in ["failed", "lost", "out_of_order"] {
        assert_eq!(variants[1][what], 0, "{report}");
    }
}

#[test]
fn a_missing_tenure_program_is_bad_input() {
    let ran = bench(&["restarts", "--tenure-bin", "/nowhere/tenure"]).with(2);
    assert!(
        ran.err.contains("there is no file /nowhere/tenure"),
        "{}",
        ran.err
    );
}
