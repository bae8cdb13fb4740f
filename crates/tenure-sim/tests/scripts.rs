//! Every script in `scripts/` plays as its golden transcript says; `UPDATE=1` rewrites the transcripts.

use std::path::{Path, PathBuf};

use tenure_sim::script::{parse, play};
use tenure_sim::world::ProtocolVariant;

fn scripts() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts");
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .expect("the scripts are there")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "sim"))
        .collect();
    found.sort();
    found
}

#[test]
fn every_script_plays_as_its_transcript_says() {
    let update = std::env::var_os("UPDATE").is_some();
    let mut problems = Vec::new();
    for path in scripts() {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&path).expect("a script can be read");
        let script = match parse(&text) {
            Ok(script) => script,
            Err(failure) => {
                problems.push(format!("{name}: {failure}"));
                continue;
            }
        };
        let (lines, result) = play(&script, ProtocolVariant::default());
        let transcript = lines.join("\n") + "\n";
        if let Err(failure) = result {
            let tail = lines
                .iter()
                .rev()
                .take(30)
                .rev()
                .cloned()
                .collect::<Vec<_>>()
                .join("\n");
            problems.push(format!("{name}: {failure}\n{tail}"));
            continue;
        }
        let golden = path.with_extension("golden");
        if update {
            std::fs::write(&golden, transcript).expect("a transcript can be written");
        } else if std::fs::read_to_string(&golden).unwrap_or_default() != transcript {
            problems.push(format!(
                "{name}: the transcript has changed; look at it with UPDATE=1 and git diff"
            ));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
    assert!(scripts().len() >= 10, "the scripts are not found");
}
