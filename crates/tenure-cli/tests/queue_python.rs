//! The Python client, by its own tests, against the real binary.

use std::path::Path;
use std::process::Command;

#[test]
fn the_tests_of_the_python_client_pass() {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/python");
    let version = Command::new("python3").arg("--version").output();
    if !version.is_ok_and(|output| output.status.success()) {
        tenure_store::servers::skipped("there is no python3");
        return;
    }
    let mut command = Command::new("python3");
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TENURE_") {
            command.env_remove(name);
        }
    }
    let output = command
        .args([
            "-B", "-W", "error", "-m", "unittest", "discover", "-s", "tests",
        ])
        .current_dir(client)
        .env("TENURE_BIN", env!("CARGO_BIN_EXE_tenure"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    println!("{said}");
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Ran ") && !said.contains("Ran 0 "), "{said}");
}
