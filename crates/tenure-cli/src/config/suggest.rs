//! What somebody may have meant.

/// The known name that is fewest edits away from `given`, if it is close enough to be a slip.
pub(crate) fn nearest<'a>(
    given: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let given = given.to_lowercase().replace('-', "_");
    let allowed = match given.chars().count() {
        0..=3 => 1,
        4..=8 => 2,
        _ => 3,
    };
    known
        .into_iter()
        .map(|name| (edits(&given, name), name))
        .filter(|(edits, _)| *edits <= allowed)
        .min()
        .map(|(_, name)| name)
}

/// Insertions, removals, replacements and swaps of neighbours between two texts.
fn edits(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i.max(j)
            } else {
                let changed = usize::from(a[i - 1] != b[j - 1]);
                let plain = (rows[i - 1][j] + 1)
                    .min(rows[i][j - 1] + 1)
                    .min(rows[i - 1][j - 1] + changed);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped {
                    plain.min(rows[i - 2][j - 2] + 1)
                } else {
                    plain
                }
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let known = ["ttl", "renew_interval", "store"];
        let check =
            |given, meant: Option<&str>| assert_eq!(nearest(given, known), meant, "{given}");
        check("tll", Some("ttl"));
        check("renew-interval", Some("renew_interval"));
        check("renew_intervall", Some("renew_interval"));
        check("Store", Some("store"));
        check("stoer", Some("store"));
        check("listen", None);
        check("x", None);
    }
}
