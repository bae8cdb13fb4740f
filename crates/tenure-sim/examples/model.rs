//! Explores scopes: `cargo run --release -p tenure-sim --example model [SCOPE…]`.

use tenure_sim::model::{Options, SCOPES, check};

fn main() {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let most: Option<usize> = std::env::var("MOST").ok().and_then(|s| s.parse().ok());
    for scope in SCOPES
        .iter()
        .filter(|s| names.is_empty() || names.iter().any(|n| n == s.name))
    {
        let mut n = 0;
        let checked = check(
            scope,
            &Options {
                most_states: most,
                ..Options::default()
            },
            |p| {
                n += 1;
                if n % 40 == 0 {
                    eprintln!("{} states {} depth {}", scope.name, p.states, p.depth);
                }
            },
        );
        for line in &checked.story {
            println!("{line}");
        }
        println!(
            "{:?}",
            tenure_sim::model::Checked {
                story: vec![],
                ..checked
            }
        );
    }
}
