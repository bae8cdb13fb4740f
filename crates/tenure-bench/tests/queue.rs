//! `tenure-bench queue` with few tasks: requests per task are bounded, and idle workers write nothing for their shards.

mod support;

use support::bench;

#[test]
fn the_queue_is_measured_under_load_and_at_rest() {
    let load = [
        "queue",
        "--workers",
        "1",
        "--workers",
        "3",
        "--tasks",
        "100",
    ];
    let idle = [
        "--shards",
        "8",
        "--idle",
        "20s",
        "--idle-case",
        "3x64",
        "--json",
    ];
    let report = bench(&[&load[..], &idle].concat()).with(0).json();
    let rows = report["rows"].as_array().unwrap();
    let row = |case: &str| {
        let found = rows.iter().find(|row| row["case"] == case);
        found.unwrap_or_else(|| panic!("{case} is not in {report:#}"))
    };
    for workers in [1, 3] {
        let figure = |what: &str| {
            let row = row(&format!("{what}, {workers} workers"));
            let median = row["figure"]["median"].as_f64();
            median.unwrap_or_else(|| panic!("no figure in {row}"))
        };
        assert!(figure("tasks") > 0.0);
        // Submitting, claiming and completing a task are two writes each, of the task and of its index. Renewals and claims of
        // shards come on top, and do not grow with the number of tasks. The bench stops counting when the last task is done, which
        // may be before the index of the last tasks is written.
        let writes = figure("writes per task");
        assert!((5.0..7.0).contains(&writes), "{writes}");
        let reads = figure("reads per task");
        // Between one and 2.2 were measured; one more read per claim makes it more than four.
        assert!(reads > 0.0 && reads < 4.0, "{reads}");
        let (half, most) = (
            figure("submitted → claimed, p50"),
            figure("submitted → claimed, p99"),
        );
        assert!(0.0 <= half && half <= most, "{half}, {most}");
    }
    // B9: with a lease per shard, each of 64 shards would be written six times a minute.
    let row = row("3 × 64: writes");
    let (ours, theirs) = (
        &row["figure"]["median"],
        &row["baseline"]["figure"]["median"],
    );
    println!("{ours} writes beside {theirs}");
    assert_eq!(theirs, 64.0 * 6.0);
    assert!(ours.as_f64() < Some(64.0 * 6.0 / 5.0), "{row}");
}
