//! The page with the help of all commands of a program, generated from its parser.

use std::fmt::Write as _;
use std::path::Path;

/// Compares the page at `path` with the parser, or writes it if `TENURE_UPDATE_DOCS` is set.
///
/// `package` names the package whose tests call this function.
///
/// # Panics
///
/// If the page differs from the parser or cannot be written.
pub fn check(mut command: clap::Command, package: &str, path: &Path) {
    let name = command.get_name().to_owned();
    let title = match name.as_str() {
        "tenure" => "Commands".to_owned(),
        name => format!("Commands of `{name}`"),
    };
    let update = format!("TENURE_UPDATE_DOCS=1 cargo test -p {package} reference_of_commands");
    let mut text = format!(
        "# {title}\n\nThe help of every command. This page is generated from the parser; a test compares both.\n\
         `{update}` writes it again.\n"
    );
    command = command.term_width(110);
    command.build();
    document(&mut command, &name, &mut text);
    if std::env::var_os("TENURE_UPDATE_DOCS").is_some() {
        let written = std::fs::write(path, &text);
        assert!(written.is_ok(), "{}: {written:?}", path.display());
    }
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == text,
        "{} is outdated; run: {update}",
        path.display()
    );
}

/// Appends the section of a command, then those of its subcommands.
fn document(command: &mut clap::Command, path: &str, text: &mut String) {
    let help = command.render_help().to_string();
    let help: Vec<&str> = help.lines().map(str::trim_end).collect();
    let level = "#".repeat(1 + path.split(' ').count());
    let _ = write!(
        text,
        "\n{level} `{path}`\n\n```text\n{}\n```\n",
        help.join("\n")
    );
    for inner in command.get_subcommands_mut() {
        if !inner.is_hide_set() && inner.get_name() != "help" {
            let path = format!("{path} {}", inner.get_name());
            document(inner, &path, text);
        }
    }
}
